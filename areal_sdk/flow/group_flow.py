"""The groups between admission and training, and every rule that decides about them."""

from collections.abc import Callable, Sequence
from typing import Any, Generic

from areal_sdk.flow.groups import Drop, Member, MemberT, OpenT, Stop, WaitingGroup, WaitingT
from areal_sdk.flow.rules import FlowRules
from areal_sdk.telemetry.ledger import DropReason

MAX_REFILLS = 3
"""Number of batches of idle groups that dynamic sampling drops before a step trains the groups that there are."""


class GroupFlow(Generic[MemberT, OpenT, WaitingT]):
    """The groups between admission and training, and the slots that they hold.

    A group takes `group_size` slots when it is admitted and gives them all back at once, when it is dropped. A trained
    group never gives them back: training frees slots by raising the version.
    """

    def __init__(
        self, rules: FlowRules, *, is_idle: Callable[[WaitingT], bool], version: int = 0
    ) -> None:
        """`is_idle` tells which finished groups teach nothing; only dynamic sampling asks."""
        self.rules = rules
        self.version = version
        """The version that all engines serve."""
        self.num_running = 0
        """Siblings of the open groups that have not ended."""
        self.open: dict[OpenT, None] = {}
        """The admitted groups that are not resolved, in order of admission."""
        self.finished: list[WaitingT] = []
        self.is_exhausted = False
        """Whether no more groups will be admitted."""
        self.valid_from = 0
        """The first version whose samples are still valid; samples of earlier versions were taken back."""
        self.enough_at: float | None = None
        """The time since which the step could begin; None while groups are missing."""
        self._is_idle = is_idle
        self._gate, self._group_size = rules.gate, rules.group_size
        self._spent = version * rules.gate.batch
        """Slots of the groups cut so far."""
        self._step = version
        """The version from which the step of the next batch starts."""
        self._num_refilled = 0
        """Idle groups that were dropped for the next batch."""
        self._must_shed = False
        """Whether some finished group may be too old, or idle."""

    # --- who starts --------------------------------------------------------------------------

    @property
    def num_slots_held(self) -> int:
        """Slots of trained, finished and open groups. Groups count whole."""
        return self._spent + self._group_size * (len(self.open) + len(self.finished))

    def has_room(self) -> bool:
        """Whether one more group may start."""
        # A simulation asks after every event, so this is spelled out.
        running, size = self.num_running, self._group_size
        held = self._spent + size * (len(self.open) + len(self.finished)) - running
        return self._gate.free_slots(version=self.version, held=held, running=running) >= size

    def admit(self, group: OpenT) -> None:
        """Note that the siblings of `group` start."""
        self.open[group] = None
        self.num_running += group.size

    def set_version(self, version: int) -> list[Stop[OpenT]]:
        """Note that the engines serve `version`. Returns the running siblings to stop, which frees their slots. The
        batches before `version` count as used up, however few episodes they had, because a short batch must not widen
        the gate for ever."""
        self.version = version
        self._spent = max(self._spent, version * self.rules.gate.batch)
        return [
            Stop(group, sibling, reason)
            for group in self.open
            if self._why_too_old(group.oldest_version, version)
            for sibling, oldest in group.running()
            if (reason := self._why_too_old(oldest, version))
            and not (reason is DropReason.STALE and self.rules.rollout.stale == "mask")
        ]

    # --- how episodes and groups end -----------------------------------------------------------

    def accept(self, group: OpenT, member: MemberT) -> None:
        """Note that a sibling ended with a reward."""
        group.members.append(member)
        self._end_one(group)

    def reject(self, group: OpenT) -> None:
        """Note a sibling that ended and will not be trained. The group keeps its slots."""
        self._end_one(group)

    def _end_one(self, group: OpenT) -> None:
        group.num_ended += 1
        self.num_running -= 1

    def resolve(self, group: OpenT) -> DropReason | None:
        """Keep a group whose siblings have all ended, or return the reason why it is dropped."""
        del self.open[group]
        self.num_running -= group.size - group.num_ended
        reason = group.give_up
        if reason is None and len(group.members) < self.rules.min_members:
            reason = DropReason.GROUP_INCOMPLETE
        if reason is None and not _has_trained(group.members):
            reason = DropReason.TRUNCATED  # all are masked, and only count in a baseline
        if reason is None:
            ended: WaitingT = group.finished()
            self.finished.append(ended)
            if self._why_too_old(ended.oldest_version, self._step) or self._teaches_nothing(ended):
                self._must_shed = True
        return reason

    def take_back(self, *, valid_from: int) -> None:
        """Train no token, from the next cut on, that a version before `valid_from` sampled."""
        self.valid_from = valid_from

    # --- what a step takes -----------------------------------------------------------------------

    def begin_cut(self, version: int) -> None:
        """Begin the batch that the trainer waits for. Its step starts from `version`."""
        self._step = version
        self._num_refilled = 0
        self._must_shed = True
        self.enough_at = None

    def shed(self) -> list[Drop[MemberT, WaitingT]]:
        """Drop members that are too old for the step, and groups that teach nothing."""
        if not self._must_shed:
            return []
        self._must_shed = False
        drops = self._shed_stale()
        if self.rules.rollout.dynamic_sampling:
            drops += self._shed_idle()
        return drops

    def is_enough(self) -> bool:
        """Whether the step could begin, once `shed` has been called."""
        if self.is_exhausted and not self.open:
            return True
        return len(self.finished) >= self.rules.groups_per_batch

    def cut_time(self, now: float) -> float | None:
        """The time to cut the batch, unless an episode ends earlier; None while groups are missing. It is `now`, except
        if a running group could be trained by this step and by no later step. Then the step waits for the group, up to
        `wait_s`."""
        if not self.is_enough():
            self.enough_at = None
            return None
        if self.enough_at is None:
            self.enough_at = now
        return max(now, self.enough_at + self.rules.rollout.wait_s) if self._should_hold() else now

    def cut(self) -> list[WaitingT]:
        """The groups of the step: those with the oldest tokens are chosen, and returned in order of admission."""
        ordered = sorted(self.finished, key=_by_age)
        taken = ordered[: self.rules.groups_per_batch]
        self.finished = ordered[self.rules.groups_per_batch :]
        self._spent += self.rules.group_size * len(taken)
        return sorted(taken, key=lambda group: group.order)

    def shed_surplus(self) -> list[Drop[MemberT, WaitingT]]:
        """Drop the oldest groups that would be too old before a step could take them.

        Only live callers need this: the gate never admits too many groups.
        """
        ordered = sorted(self.finished, key=_by_age)
        room = (self.rules.gate.max_staleness + 1) * self.rules.groups_per_batch
        surplus = ordered[: max(0, len(ordered) - room)]
        self._remove(surplus)
        return [Drop(DropReason.STALE, group.members, group) for group in surplus]

    # --- internals -------------------------------------------------------------------------------

    def _why_too_old(self, oldest: int | None, version: int) -> DropReason | None:
        """The reason why the step from `version` may not train tokens of version `oldest`; None if it may."""
        if oldest is not None and oldest < self.valid_from:
            return DropReason.ROLLED_BACK
        return DropReason.STALE if self.rules.gate.is_stale(oldest, version=version) else None

    def _should_hold(self) -> bool:
        """Whether this step should wait for a running group that would be too old for the next step.

        It should not if the batch is full of equally old groups, since waiting would not help.
        """
        if self.rules.rollout.stale != "wait" or self.is_exhausted:
            return False
        is_stale, after = self.rules.gate.is_stale, self._step + 1
        last_chance = sum(is_stale(group.oldest_version, version=after) for group in self.finished)
        return last_chance < self.rules.groups_per_batch and any(
            is_stale(group.oldest_version, version=after) for group in self.open
        )

    def _shed_stale(self) -> list[Drop[MemberT, WaitingT]]:
        drops: list[Drop[MemberT, WaitingT]] = []
        kept: list[WaitingT] = []
        for group in self.finished:
            reason = self._why_too_old(group.oldest_version, self._step)
            if reason is None:
                kept.append(group)
                continue
            fresh: list[MemberT] = []
            lost: list[MemberT] = []
            for member in group.members:
                young = self._freshen(member)
                if young is None:
                    lost.append(member)
                else:
                    fresh.append(young)
            if lost:
                drops.append(Drop(reason, lost))
            if len(fresh) >= self.rules.min_members and _has_trained(fresh):
                kept.append(group.with_members(fresh))
            else:
                drops.append(Drop(DropReason.GROUP_INCOMPLETE, fresh, group))
        self.finished = kept
        return drops

    def _freshen(self, member: MemberT) -> MemberT | None:
        """The member as the step may train it; None if it is too old."""
        reason = self._why_too_old(member.oldest_version, self._step)
        if reason is None:
            return member
        if reason is DropReason.STALE and self.rules.rollout.stale == "mask":
            return member.masked(before=self._step - self.rules.gate.max_staleness)
        return None

    def _shed_idle(self) -> list[Drop[MemberT, WaitingT]]:
        """Drop groups that teach nothing, up to a few batches' worth for one batch."""
        if self.rules.in_order and self.open:
            self._must_shed = (
                True  # once all have ended: else the order in which they end would decide
            )
            return []
        left = MAX_REFILLS * self.rules.groups_per_batch - self._num_refilled
        if self.is_exhausted:
            left = 0
        idle = [group for group in sorted(self.finished, key=_by_age) if self._is_idle(group)]
        idle = idle[: max(0, left)]
        self._num_refilled += len(idle)
        self._remove(idle)
        return [Drop(DropReason.ZERO_VARIANCE, group.members, group) for group in idle]

    def _teaches_nothing(self, group: WaitingT) -> bool:
        return self.rules.rollout.dynamic_sampling and self._is_idle(group)

    def _remove(self, groups: Sequence[WaitingT]) -> None:
        gone = {id(group) for group in groups}
        self.finished = [group for group in self.finished if id(group) not in gone]


def _has_trained(members: Sequence[Member]) -> bool:
    """Whether any member has a token to train. Masked members only count in the baseline."""
    return any(member.oldest_version is not None for member in members)


def _by_age(group: WaitingGroup) -> tuple[int, Any]:
    """Sort key: the oldest token, then the order of admission."""
    oldest = group.oldest_version
    return (-1 if oldest is None else oldest, group.order)
