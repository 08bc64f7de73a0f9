"""The plainest groups that follow the rules: members are a number and their versions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from areal_sdk.config import RolloutSection
from areal_sdk.flow import FlowRules, GroupFlow
from areal_sdk.telemetry.ledger import DropReason


@dataclass(frozen=True)
class PlainMember:
    """An episode whose tokens were sampled by `versions`, oldest first."""

    group: int
    sibling: int
    versions: tuple[int, ...]

    @property
    def oldest_version(self) -> int | None:
        return min(self.versions, default=None)

    def masked(self, *, before: int) -> Self | None:
        kept = tuple(version for version in self.versions if version >= before)
        return replace(self, versions=kept) if kept else None


@dataclass(eq=False)
class PlainGroup:
    """A group before and after it is finished."""

    order: int
    size: int
    members: list[PlainMember] = field(default_factory=list)
    num_ended: int = 0
    give_up: DropReason | None = None
    is_idle: bool = False
    ages: dict[int, int | None] = field(default_factory=dict)
    """Version of the first token of each running sibling."""

    @property
    def oldest_version(self) -> int | None:
        sampled = (member.oldest_version for member in self.members)
        return min((v for v in (*sampled, *self.ages.values()) if v is not None), default=None)

    def running(self) -> Iterable[tuple[int, int | None]]:
        return list(self.ages.items())

    def finished(self) -> Self:
        return self

    def with_members(self, members: Sequence[PlainMember]) -> Self:
        self.members = list(members)
        return self


class PlainFlow(GroupFlow[PlainMember, PlainGroup, PlainGroup]):
    """A flow with verbs for tests."""

    def __init__(self, *, version: int = 0, in_order: bool = False, **rollout: Any) -> None:
        given = {"batch": 4, "group_size": 2, "max_staleness": 1, "max_inflight": 100, **rollout}
        rules = FlowRules(RolloutSection.model_validate(given), in_order=in_order)
        super().__init__(rules, is_idle=lambda group: group.is_idle, version=version)
        self.num_admitted = 0

    def start(self, *, is_idle: bool = False, size: int | None = None) -> PlainGroup:
        """Admit one more group; its siblings have sampled nothing yet."""
        group = PlainGroup(self.num_admitted, size or self.rules.group_size, is_idle=is_idle)
        group.ages = dict.fromkeys(range(group.size))
        self.num_admitted += 1
        self.admit(group)
        return group

    def fill(self) -> list[PlainGroup]:
        """Admit groups until the gate is full."""
        started = []
        while self.has_room():
            started.append(self.start())
        return started

    def end(self, group: PlainGroup, *versions: int) -> None:
        """The first sibling that runs ends, sampled by `versions`; without versions it failed."""
        sibling = next(iter(group.ages))
        del group.ages[sibling]
        if versions:
            self.accept(group, PlainMember(group.order, sibling, versions))
        else:
            self.reject(group)

    def finish(self, *versions: int, is_idle: bool = False) -> PlainGroup:
        """Admit a group all of whose siblings end, sampled by `versions`."""
        group = self.start(is_idle=is_idle)
        for _ in range(group.size):
            self.end(group, *versions)
        assert self.resolve(group) is None
        return group

    @property
    def waiting(self) -> list[int]:
        """The finished groups, by number."""
        return [group.order for group in self.finished]
