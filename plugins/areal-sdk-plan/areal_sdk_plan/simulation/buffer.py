"""The buffer of the simulation: simulated groups follow the rules of a run, in simulated time."""

import random
from collections import Counter
from dataclasses import dataclass

from areal_sdk.flow import DropReason, FlowRules, GroupFlow
from areal_sdk_plan.simulation.play import Player, SimulatedGroup


@dataclass(frozen=True, slots=True)
class SimulatedBatch:
    """The groups that one step trains."""

    version: int
    groups: tuple[SimulatedGroup, ...]

    @property
    def players(self) -> list[Player]:
        return [player for group in self.groups for player in group.members]

    def ages(self) -> list[int]:
        """Versions that the oldest token of each episode lags behind."""
        versions = (p.first_version for p in self.players)
        return [self.version - v for v in versions if v is not None]


class SimulatedBuffer:
    """Simulated groups between admission and training, and the number of dropped episodes."""

    def __init__(self, rules: FlowRules) -> None:
        self.rules = rules
        self.flow: GroupFlow[Player, SimulatedGroup, SimulatedGroup] = GroupFlow(
            rules, is_idle=lambda group: group.is_idle
        )
        self.dropped: Counter[str] = Counter()
        self.has_news = False
        """A group ended, or became younger, since the trainer last looked."""

    def end(self, player: Player, *, is_valid: bool) -> list[Player]:
        """An episode ended; returns siblings to stop, because their group is given up."""
        group = player.group
        stopped: list[Player] = []
        player.is_over = True
        if is_valid:
            self.flow.accept(group, player)
        else:
            self._lose(player, "failed")
            if self.rules.drops_incomplete and group.give_up is None:
                group.give_up = DropReason.GROUP_INCOMPLETE
                stopped = [other for other in group.players if not other.is_over]
        self._resolve_if_whole(group)
        return stopped

    def stop(self, player: Player, reason: DropReason) -> None:
        """Drop an episode that is stopped on the way."""
        player.is_over = True
        self._lose(player, reason)
        self._resolve_if_whole(player.group)

    def set_version(self, version: int) -> list[tuple[Player, DropReason]]:
        """The engines serve `version`; returns the running episodes that no step can train any more."""
        stops = self.flow.set_version(version)
        return [(stop.group.players[stop.sibling], stop.reason) for stop in stops]

    def is_enough(self) -> bool:
        """Whether the step could begin, once what it may not train is dropped."""
        self.has_news = False
        for drop in self.flow.shed():
            self.dropped[drop.reason] += len(drop.members)
        return self.flow.is_enough()

    def cut(self, version: int) -> SimulatedBatch:
        return SimulatedBatch(version, tuple(self.flow.cut()))

    def _lose(self, player: Player, reason: str) -> None:
        self.flow.reject(player.group)
        self.dropped[reason] += 1
        player.group.forget_lost()
        self.has_news = True

    def _resolve_if_whole(self, group: SimulatedGroup) -> None:
        if group.num_ended < len(group.players):
            return
        self.has_news = True
        reason = self.flow.resolve(group)
        if reason is not None:
            self.dropped[reason] += len(group.members)


def mark_idle(group: SimulatedGroup, share: float, generator: random.Random) -> None:
    """Whether the group teaches nothing is drawn when it starts."""
    group.is_idle = bool(share) and generator.random() < share
