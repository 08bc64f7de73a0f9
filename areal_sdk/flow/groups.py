"""The parts of episodes and groups that the rules read, and the answers of the rules. A run has groups of real
episodes, a plan has groups of simulated ones."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

from areal_sdk.telemetry.ledger import DropReason


class Member(Protocol):
    """An episode that ended with a reward."""

    @property
    def oldest_version(self) -> int | None:
        """Version of the oldest trained token; None if no token is trained."""
        ...

    def masked(self, *, before: int) -> Self | None:
        """The episode without the tokens that versions before `before` sampled; None if no trained token is left."""
        ...


class OpenGroup(Protocol):
    """Siblings of one task, from admission until the last has ended."""

    num_ended: int
    members: list[Any]
    """The siblings that ended with a reward."""
    give_up: DropReason | None
    """The reason why the group will not be trained, if that is already certain."""

    @property
    def size(self) -> int: ...

    @property
    def oldest_version(self) -> int | None:
        """Version of the oldest token sampled so far, in members and running siblings."""
        ...

    def running(self) -> Iterable[tuple[int, int | None]]:
        """The siblings that run and were not stopped, each as its number and the version of its oldest token."""
        ...

    def finished(self) -> Any:
        """The group as it waits for a step."""
        ...


class WaitingGroup(Protocol):
    """A group that waits for a step. It keeps its slots until it is dropped."""

    @property
    def members(self) -> Sequence[Any]: ...

    @property
    def order(self) -> Any:
        """Sort key: the order in which groups were admitted."""
        ...

    @property
    def oldest_version(self) -> int | None: ...

    def with_members(self, members: Sequence[Any]) -> Self: ...


MemberT = TypeVar("MemberT", bound=Member)
OpenT = TypeVar("OpenT", bound=OpenGroup)
WaitingT = TypeVar("WaitingT", bound=WaitingGroup)


@dataclass(frozen=True, slots=True)
class Drop(Generic[MemberT, WaitingT]):
    """Members of a finished group that no step will train."""

    reason: DropReason
    members: Sequence[MemberT]
    given_up: WaitingT | None = None
    """The group, if no member is left. Its slots are then free."""


@dataclass(frozen=True, slots=True)
class Stop(Generic[OpenT]):
    """A running sibling that no step can train any more."""

    group: OpenT
    sibling: int
    reason: DropReason
