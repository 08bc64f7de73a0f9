"""Holds groups between admission and training, and chooses the groups of the next step.

The buffer holds the slots that the gate counts. A group takes `group_size` of them when it is
admitted and gives them all back at once, when it is dropped. A trained group never does: training
frees slots by raising the version.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from areal_sdk.errors import ConfigError
from areal_sdk.rollout.groups import (
    FailureStreak,
    FinishedGroup,
    PendingGroup,
    Rejection,
    RolloutBatch,
    ScoredEpisode,
    by_age,
    iter_members,
)
from areal_sdk.rollout.metrics import RecentEpisodes, batch_metrics, share_without_reward
from areal_sdk.rollout.staleness import StalenessGate, mask_older, oldest_version
from areal_sdk.rollout.tasks import IssuedTask, TaskKey
from areal_sdk.telemetry.ledger import DropReason, Ledger
from areal_sdk.telemetry.waits import waiting
from areal_sdk.trainer import IdleGroups

StalePolicy = Literal["wait", "drop", "mask"]

MAX_REFILLS = 3
"""Batches' worth of idle groups that dynamic sampling drops before it trains what it has."""


class TrajectoryBuffer:
    """Finished groups, oldest first. The dispatcher fills it, the loop cuts batches from it.

    Every change sets `changed`, which wakes the waiting tasks; nothing polls.
    """

    def __init__(
        self,
        *,
        gate: StalenessGate,
        ledger: Ledger,
        group_size: int,
        version: int = 0,
        stale: StalePolicy = "wait",
        wait_s: float = 30.0,
        drop_incomplete: bool = False,
        dynamic_sampling: bool = False,
        idle_groups: IdleGroups = IdleGroups.EQUAL_REWARDS,
        in_order: bool = False,
        max_lost_in_a_row: int | None = None,
    ) -> None:
        if gate.batch % group_size:
            raise ConfigError(
                f"batch = {gate.batch} is not a multiple of group_size = {group_size}"
            )
        if gate.max_inflight < group_size:
            raise ConfigError(
                f"max_inflight = {gate.max_inflight} cannot hold one group of {group_size}: "
                f"raise it to at least {group_size}"
            )
        if in_order and gate.max_staleness:
            raise ConfigError(
                f"a deterministic order needs max_staleness = 0, not {gate.max_staleness}"
            )
        self.gate = gate
        self.ledger = ledger
        self.group_size = group_size
        self.stale = stale
        self.wait_s = wait_s
        self.drop_incomplete = drop_incomplete
        """Drop a group as soon as one sibling fails, and stop its other siblings."""
        self.dynamic_sampling = dynamic_sampling
        self.idle_groups = idle_groups
        """Groups that dynamic sampling drops: those from which the algorithm learns nothing."""
        self.in_order = in_order
        """Deterministic: taking and dropping do not depend on which episode ended first."""
        self.recent = RecentEpisodes()
        self._min_members = group_size if drop_incomplete else min(2, group_size)
        """A group with fewer valid members than this is dropped."""
        self.on_consumed: Callable[[TaskKey], None] = lambda key: None
        """Function that is called when a group is trained or given up, so that a resumed run does
        not repeat its task."""
        self.on_trained: Callable[[], None] = lambda: None
        """Function that is called when all groups of a batch were trained, and consumed."""
        self.source_metrics: Callable[[], dict[str, float]] = dict
        """The metrics that the source of the tasks adds to those of a batch."""
        self.source_notices: Callable[[], tuple[str, ...]] = tuple
        """The notices that the source of the tasks adds to those of a batch."""
        self._version = version
        self._valid_from = 0
        """Samples of versions before this one were taken back."""
        self._spent = version * gate.batch
        """Slots of the groups cut so far."""
        self._pending: dict[str, PendingGroup] = {}
        self._finished: list[FinishedGroup] = []
        self._num_running = 0
        """Siblings of the pending groups that have not ended."""
        self._shed_for: tuple[int, int] | None = None
        """The version and the number of ended groups for which nothing is left to shed."""
        self._num_resolved = 0
        self._changed = asyncio.Event()
        self._exhausted = False
        self._is_held = False
        self._failure: BaseException | None = None
        self._streak = FailureStreak(max_lost_in_a_row or max(64, 2 * gate.batch))
        self._dropped: Counter[DropReason] = Counter()

    # --- the gate's numbers ------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version that all engines have confirmed to serve."""
        return self._version

    def set_version(self, version: int) -> None:
        """The engines serve `version`. The batches before it count as used up, however few
        episodes they had: a short batch must not widen the gate for ever."""
        self._version = version
        self._spent = max(self._spent, version * self.gate.batch)
        self._stop_stale(version)
        self._notify()

    @property
    def num_running(self) -> int:
        return self._num_running

    @property
    def num_slots_held(self) -> int:
        """Trained, finished and running, in whole groups."""
        return self._spent + self.group_size * (len(self._pending) + len(self._finished))

    def has_room(self) -> bool:
        """Whether one more group may start."""
        if self._failure is not None or self._is_held:
            return False
        running = self.num_running
        free = self.gate.free_slots(
            version=self._version, held=self.num_slots_held - running, running=running
        )
        return free >= self.group_size

    # --- the dispatcher's side ---------------------------------------------------------------

    @property
    def changed(self) -> asyncio.Event:
        """The event that is set at the next change. Take the event *before* reading the state, then
        wait on it."""
        return self._changed

    def admit(self, issued: IssuedTask, *, size: int | None = None) -> PendingGroup:
        """A new pending group. `size` is for live callers, whose groups may be smaller."""
        group = PendingGroup(
            f"{issued.task.id}.{issued.epoch}",
            issued,
            size=self.group_size if size is None else size,
        )
        assert group.id not in self._pending, f"group {group.id} was admitted twice"
        self._pending[group.id] = group
        self._num_running += group.size
        return group

    def accept(self, group: PendingGroup, member: ScoredEpisode) -> None:
        """A sibling ended with a reward. It no longer counts as running."""
        group.num_ended += 1
        self._num_running -= 1
        group.members.append(member)
        self.ledger.buffer(1)
        self.recent.kept(
            member.duration_s,
            truncated=member.truncated,
            num_sampled=member.num_sampled,
            called_tools=member.called_tools,
        )
        self._notify()

    def reject(self, group: PendingGroup, rejection: Rejection, *, ran_s: float = 0.0) -> None:
        """A sibling will not be trained. The group keeps its slot."""
        group.num_ended += 1
        self._num_running -= 1
        self._drop(rejection.reason, 1, buffered=False)
        self._notify()
        if rejection.reason is DropReason.STALE:
            self.recent.stopped(ran_s)
        elif rejection.reason not in _OF_NO_EPISODE:
            self.recent.rejected(rejection.reason, ran_s)
        if (
            rejection.reason is not DropReason.GROUP_INCOMPLETE
        ):  # else the cause is another sibling's rejection
            group.rejection = rejection

    def resolve(self, group: PendingGroup) -> None:
        """All siblings have ended: finish the group if enough of them are valid, else drop it."""
        del self._pending[group.id]
        self._num_running -= group.num_running
        self._num_resolved += 1
        reason, cause = group.give_up, group.rejection
        if reason is None and len(group.members) < self._min_members:
            reason = DropReason.GROUP_INCOMPLETE
        if reason is None and not _trains(group.members):
            reason = DropReason.TRUNCATED  # all are masked: no token to train
            cause = Rejection(reason, 'all of its group ran into a limit, and truncated = "mask"')
        self._notify()
        if reason is None:
            # In a fixed order: the last digit of the mean reward depends on it.
            members = sorted(group.members, key=lambda member: member.sibling)
            self._finished.append(FinishedGroup(group.id, group.issued, tuple(members)))
            self._streak.end()
            return
        self._drop(reason, len(group.members), buffered=True)
        if reason is not DropReason.CANCELLED:
            self.on_consumed(group.issued.key)
            cause = cause or Rejection(reason, "the other siblings were dropped")
            is_lost = cause.reason is not DropReason.ROLLED_BACK and not self._is_held
            if is_lost and (hopeless := self._streak.lose(group.size, cause)):
                self.fail(hopeless)

    def hold(self, is_down: bool) -> None:
        """Hold all groups back while the engine is down: none starts, and dropped groups do not
        count as failures."""
        self._is_held = is_down
        self._streak.end()
        self._notify()

    def shed_surplus(self) -> None:
        """Drop the oldest groups that would be too old before a step could take them.

        Only live callers need this: the gate never admits too many groups.
        """
        room = (self.gate.max_staleness + 1) * self._groups_per_batch
        ordered = by_age(self._finished)
        for group in ordered[: max(0, len(ordered) - room)]:
            self._finished.remove(group)
            self._drop(DropReason.STALE, len(group.members), buffered=True)

    def exhaust(self) -> None:
        """No more groups will be admitted."""
        self._exhausted = True
        self._notify()

    def fail(self, error: BaseException) -> None:
        """`cut_batch` raises `error`. The first error wins: it is usually the cause."""
        self._failure = self._failure or error
        self._notify()

    # --- the trainer's side ------------------------------------------------------------------

    async def cut_batch(self, *, version: int, timeout_s: float = 3600.0) -> RolloutBatch:
        """The groups that the step from `version` to the next one trains.

        Waits until there are enough. Under `stale = "wait"` it also waits, up to `wait_s`, for running groups that
        this step can still train and the next one could not.
        """
        clock = asyncio.get_running_loop().time
        began = clock()
        enough_at: float | None = None
        num_refilled = 0
        self._shed_for = None
        name = f"rollouts: the {self.gate.batch} episodes of step {version + 1}"
        async with waiting(name, timeout_s=timeout_s):
            while True:
                changed = self._changed
                if self._failure is not None:
                    raise self._failure
                # The end of any episode wakes this loop; only that of a group gives it something to shed.
                if self._shed_for != (version, self._num_resolved):
                    self._shed_for = (version, self._num_resolved)
                    self._shed_stale(version)
                    if self.dynamic_sampling:
                        num_refilled += self._shed_idle(num_refilled)
                if self._is_enough():
                    enough_at = clock() if enough_at is None else enough_at
                    left_s = enough_at + self.wait_s - clock()
                    if left_s <= 0 or not self._should_hold(version):
                        break
                    await _wait_up_to(changed, left_s)
                else:
                    enough_at = None
                    await changed.wait()
        waited_s, held_s = enough_at - began, clock() - enough_at
        return self._cut(version, waited_s=waited_s, held_s=held_s)

    def mark_trained(self, batch: RolloutBatch) -> None:
        """The step is done: the batch's episodes are trained, its tasks consumed."""
        self.ledger.train(batch.num_episodes)
        for group in batch.finished:
            self.on_consumed(group.issued.key)
        self.on_trained()

    def take_back(self, batch: RolloutBatch, *, valid_from: int) -> None:
        """Drop `batch`, and from the next version on all that weights before `valid_from` have sampled."""
        self._drop(DropReason.ROLLED_BACK, batch.num_episodes, buffered=True)
        for group in batch.finished:
            self.on_consumed(group.issued.key)
        self._valid_from = valid_from

    def waiting_groups(self) -> list[str]:
        """The groups that are neither trained nor dropped: a resume from now on plays them again."""
        return [*self._pending, *(group.id for group in self._finished)]

    # --- internals ---------------------------------------------------------------------------

    @property
    def _groups_per_batch(self) -> int:
        return self.gate.batch // self.group_size

    def _is_enough(self) -> bool:
        if self._exhausted and not self._pending:
            return True
        return len(self._finished) >= self._groups_per_batch

    def _should_hold(self, version: int) -> bool:
        """Whether this step should wait for a running group that would be too old for the next step.

        If the batch is full of groups that are as old, waiting would not help.
        """
        if self.stale != "wait" or self._exhausted:
            return False
        last_chance = [
            group
            for group in self._finished
            if self.gate.is_stale(group.oldest_version, version=version + 1)
        ]
        return len(last_chance) < self._groups_per_batch and any(
            self.gate.is_stale(group.oldest_version, version=version + 1)
            for group in self._pending.values()
        )

    def _cut(self, version: int, *, waited_s: float, held_s: float) -> RolloutBatch:
        ordered = by_age(self._finished)
        taken = ordered[: self._groups_per_batch]
        self._finished = ordered[self._groups_per_batch :]
        self._spent += self.group_size * len(taken)
        taken.sort(key=lambda group: group.issued.order)
        self.recent.grouped(taken)
        for member in iter_members(taken):
            self.recent.aged(member.duration_s, stale=False)
        metrics = {
            "waited_s": waited_s,
            "held_s": held_s,
            "buffered_groups": float(len(self._finished)),
            "running": float(self.num_running),
            **batch_metrics(taken, version=version),
            **self.source_metrics(),
            **self.recent.metrics(),
            "without_reward": share_without_reward(
                self._dropped, num_rewarded=sum(len(group.members) for group in taken)
            ),
            **{f"dropped/{reason.value}": float(n) for reason, n in self._dropped.items()},
        }
        self._dropped.clear()
        return RolloutBatch(
            version,
            tuple(taken),
            metrics,
            notices=(*self.recent.notices(), *self.source_notices()),
            exhausted=self._exhausted and not self._pending and not self._finished,
        )

    def _stop_stale(self, version: int) -> None:
        """Cancel running siblings that no step can train any more, to free their slots."""
        for group in self._pending.values():
            for sibling, age in group.ages.items():
                reason = self._why_too_old(age(), version)
                is_masked = reason is DropReason.STALE and self.stale == "mask"
                if reason and not is_masked and sibling not in group.stopped:
                    group.stop(sibling, reason)

    def _why_too_old(self, oldest: int | None, version: int) -> DropReason | None:
        """The reason why the step from `version` may not train a group that began with version
        `oldest`; None if it may."""
        if oldest is not None and oldest < self._valid_from:
            return DropReason.ROLLED_BACK
        return DropReason.STALE if self.gate.is_stale(oldest, version=version) else None

    def _shed_stale(self, version: int) -> None:
        """Remove the members that the step from `version` may not train from their groups."""
        kept: list[FinishedGroup] = []
        for group in self._finished:
            reason = self._why_too_old(group.oldest_version, version)
            if reason is None:
                kept.append(group)
                continue
            fresh = [m for m in (self._freshen(m, version) for m in group.members) if m]
            self._drop(reason, len(group.members) - len(fresh), buffered=True)
            if len(fresh) >= self._min_members and _trains(fresh):
                kept.append(replace(group, members=tuple(fresh)))
            else:
                self._drop(DropReason.GROUP_INCOMPLETE, len(fresh), buffered=True)
                self.on_consumed(group.issued.key)
        self._replace_finished(kept)

    def _freshen(self, member: ScoredEpisode, version: int) -> ScoredEpisode | None:
        """The member as the step from `version` may train it; None if it is too old."""
        reason = self._why_too_old(member.oldest_version, version)
        if reason is None:
            return member
        if reason is DropReason.ROLLED_BACK:
            return None
        if self.stale == "mask":
            bound = version - self.gate.max_staleness
            masked = tuple(mask_older(t, than=bound) for t in member.trajectories)
            oldest = oldest_version(masked)
            if oldest is not None:
                return replace(member, trajectories=masked, oldest_version=oldest)
        self.recent.aged(member.duration_s, stale=True)
        return None

    def _shed_idle(self, num_dropped: int) -> int:
        """Drop groups that teach nothing, up to a few batches' worth for one batch."""
        if self.in_order and self._pending:
            return 0  # else the order in which groups end would decide
        left = MAX_REFILLS * self._groups_per_batch - num_dropped
        if self._exhausted:
            left = 0
        idle = [group for group in by_age(self._finished) if group.is_idle(self.idle_groups)]
        idle = idle[: max(0, left)]
        for group in idle:
            self._drop(DropReason.ZERO_VARIANCE, len(group.members), buffered=True)
            self.on_consumed(group.issued.key)
        self._replace_finished([group for group in self._finished if group not in idle])
        return len(idle)

    def _replace_finished(self, groups: list[FinishedGroup]) -> None:
        if len(groups) != len(self._finished):
            self._notify()  # slots were given back
        self._finished = groups

    def _drop(self, reason: DropReason, count: int, *, buffered: bool) -> None:
        if count:
            self.ledger.drop(reason, count, buffered=buffered)
            self._dropped[reason] += count

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


_OF_NO_EPISODE = (DropReason.CANCELLED, DropReason.ROLLED_BACK)
"""Reasons that say nothing about the episodes."""


def _trains(members: Sequence[ScoredEpisode]) -> bool:
    """Whether any of them has a token to train; masked ones only count in the baseline."""
    return any(member.oldest_version is not None for member in members)


async def _wait_up_to(event: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
