"""The gate and the buffer of the simulation: the rules of `rollout.buffer`, in simulated time.

`StalenessGate` itself says how many episodes may start and what is too old. The rules of the cut are
those of `TrajectoryBuffer`, which runs on an event loop and so cannot be used at this speed; a test
plays both on the same episodes and compares every batch.
"""

import random
from collections import Counter
from dataclasses import dataclass

from areal_sdk.config import RolloutSection
from areal_sdk.planner.simulation.play import Player, SimulatedGroup
from areal_sdk.rollout.buffer import MAX_REFILLS
from areal_sdk.rollout.staleness import StalenessGate


@dataclass(frozen=True, slots=True)
class BookRules:
    """The settings of `[rollout]` that decide what starts and what is trained."""

    gate: StalenessGate
    """Batch, staleness and episodes in flight. They count in place of those of `rollout`, because
    plans try many."""
    rollout: RolloutSection

    @property
    def groups_per_batch(self) -> int:
        return self.gate.batch // self.rollout.group_size

    @property
    def drops_incomplete(self) -> bool:
        return self.rollout.incomplete_groups == "drop"


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


class SimulatedBooks:
    """The books of the simulation: which groups may start, and which a step trains."""

    def __init__(self, rules: BookRules, *, version: int = 0) -> None:
        self.rules = rules
        self.version = version
        """The version that all engines serve."""
        self.dropped: Counter[str] = Counter()
        self._spent = version * rules.gate.batch
        self._pending: dict[int, SimulatedGroup] = {}
        self._finished: list[SimulatedGroup] = []
        self._num_running = 0
        self._num_refilled = 0
        self._trains_from = version
        self._must_shed = False
        """Some finished group is too old, or teaches nothing."""
        self.has_news = False
        """A group ended, or became younger, since the trainer last looked."""
        self._min_members = (
            rules.rollout.group_size if rules.drops_incomplete else min(2, rules.rollout.group_size)
        )

    # --- who starts --------------------------------------------------------------------------

    @property
    def num_running(self) -> int:
        return self._num_running

    def has_room(self) -> bool:
        size = self.rules.rollout.group_size
        held = self._spent + size * (len(self._pending) + len(self._finished)) - self._num_running
        free = self.rules.gate.free_slots(
            version=self.version, held=held, running=self._num_running
        )
        return free >= size

    def admit(self, group: SimulatedGroup) -> None:
        self._pending[group.order] = group
        self._num_running += len(group.players)

    # --- how episodes end ----------------------------------------------------------------------

    def end(self, player: Player, *, is_valid: bool) -> list[Player]:
        """An episode ended; returns siblings to stop, because their group is given up."""
        group = player.group
        player.is_over = True
        group.num_ended += 1
        self._num_running -= 1
        stopped: list[Player] = []
        if is_valid:
            group.members.append(player)
        else:
            self.dropped["failed"] += 1
            group.forget_lost()
            self.has_news = True
            if self.rules.drops_incomplete and not group.is_given_up:
                group.is_given_up = True
                stopped = [other for other in group.players if not other.is_over]
        if group.num_running == 0:
            self._resolve(group)
        return stopped

    def stop(self, player: Player, reason: str) -> None:
        """An episode is stopped on the way."""
        group = player.group
        player.is_over = True
        group.num_ended += 1
        self._num_running -= 1
        self.dropped[reason] += 1
        group.forget_lost()
        self.has_news = True
        if group.num_running == 0:
            self._resolve(group)

    def _resolve(self, group: SimulatedGroup) -> None:
        del self._pending[group.order]
        self.has_news = True
        if group.is_given_up or len(group.members) < self._min_members:
            self.dropped["group_incomplete"] += len(group.members)
            return
        self._finished.append(group)
        is_idle = group.is_idle and self.rules.rollout.dynamic_sampling
        if is_idle or self.rules.gate.is_stale(group.oldest, version=self._trains_from):
            self._must_shed = True

    def set_version(self, version: int) -> list[Player]:
        """The engines serve `version`; returns the running episodes that no step can train any more."""
        self.version = version
        self._spent = max(self._spent, version * self.rules.gate.batch)
        if self.rules.rollout.stale == "mask":
            return []
        is_stale = self.rules.gate.is_stale
        return [
            player
            for group in self._pending.values()
            if is_stale(group.oldest, version=version)
            for player in group.players
            if not player.is_over and is_stale(player.first_version, version=version)
        ]

    # --- what a step trains --------------------------------------------------------------------

    def begin_cut(self, version: int) -> None:
        """The trainer wants the batch of the step from `version`."""
        self._num_refilled = 0
        self._trains_from = version
        self._must_shed = True

    def is_enough(self) -> bool:
        """Whether the step could begin, once what it may not train is dropped."""
        self.has_news = False
        if self._must_shed:
            self._must_shed = False
            self._shed_stale(self._trains_from)
            if self.rules.rollout.dynamic_sampling:
                self._shed_idle()
        return len(self._finished) >= self.rules.groups_per_batch

    def should_hold(self, version: int) -> bool:
        """Whether a running group would be too old for the next step, and this one has room."""
        if self.rules.rollout.stale != "wait":
            return False
        is_stale = self.rules.gate.is_stale
        last_chance = sum(is_stale(group.oldest, version=version + 1) for group in self._finished)
        return last_chance < self.rules.groups_per_batch and any(
            is_stale(group.oldest, version=version + 1) for group in self._pending.values()
        )

    def cut(self, version: int) -> SimulatedBatch:
        ordered = sorted(self._finished, key=_by_age)
        taken = ordered[: self.rules.groups_per_batch]
        self._finished = ordered[self.rules.groups_per_batch :]
        self._spent += self.rules.rollout.group_size * len(taken)
        return SimulatedBatch(version, tuple(taken))

    # --- internals -----------------------------------------------------------------------------

    def _shed_stale(self, version: int) -> None:
        is_stale = self.rules.gate.is_stale
        if not any(is_stale(group.oldest, version=version) for group in self._finished):
            return
        kept: list[SimulatedGroup] = []
        for group in self._finished:
            fresh = [p for p in group.members if self._is_trainable(p, version)]
            self.dropped["stale"] += len(group.members) - len(fresh)
            if len(fresh) >= self._min_members:
                group.members = fresh
                group.forget_lost()
                kept.append(group)
            else:
                self.dropped["group_incomplete"] += len(fresh)
        self._finished = kept

    def _is_trainable(self, player: Player, version: int) -> bool:
        gate = self.rules.gate
        if not gate.is_stale(player.first_version, version=version):
            return True
        if self.rules.rollout.stale != "mask" or gate.is_stale(
            player.last_version, version=version
        ):
            return False
        player.first_version = version - gate.max_staleness  # what is older is masked
        return True

    def _shed_idle(self) -> None:
        left = MAX_REFILLS * self.rules.groups_per_batch - self._num_refilled
        idle = [group for group in sorted(self._finished, key=_by_age) if group.is_idle]
        dropped = set(map(id, idle[: max(0, left)]))
        self._num_refilled += len(dropped)
        self.dropped["zero_variance"] += sum(
            len(group.members) for group in self._finished if id(group) in dropped
        )
        self._finished = [group for group in self._finished if id(group) not in dropped]


def _by_age(group: SimulatedGroup) -> tuple[int, int]:
    return (-1 if group.oldest is None else group.oldest, group.order)


def mark_idle(group: SimulatedGroup, share: float, generator: random.Random) -> None:
    """Whether the group teaches nothing is drawn when it starts."""
    group.is_idle = bool(share) and generator.random() < share
