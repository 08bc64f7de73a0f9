"""The buffer of a run: it applies the rules of `areal_sdk.flow` to real episodes, and records them in the ledger.

A source of episodes fills the buffer, and the training loop cuts batches from it. The rules say which
groups start, wait, are taken and are dropped. The buffer keeps the ledger and the metrics, tells the
task source what was consumed, and wakes those who wait.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress

from areal_sdk.flow import Drop, FlowRules, GroupFlow
from areal_sdk.rollout.groups import (
    FailureStreak,
    FinishedGroup,
    PendingGroup,
    Rejection,
    RolloutBatch,
    ScoredEpisode,
    iter_members,
)
from areal_sdk.rollout.metrics import RecentEpisodes, batch_metrics, share_without_reward
from areal_sdk.rollout.tasks import IssuedTask, TaskBook
from areal_sdk.telemetry.ledger import DropReason, Ledger
from areal_sdk.telemetry.live.waits import waiting
from areal_sdk.trainer import IdleGroups

_OF_NO_EPISODE = (DropReason.CANCELLED, DropReason.ROLLED_BACK)
"""Drop reasons that lie with the run, not with the episode. Rates over recent episodes leave them out."""

_ALL_MASKED = 'all of its group ran into a limit, and truncated = "mask"'


class TrajectoryBuffer:
    """Groups between admission and training.

    Every change sets `changed`, which wakes the waiting tasks; nothing polls.
    """

    def __init__(
        self,
        rules: FlowRules,
        *,
        tasks: TaskBook,
        ledger: Ledger,
        version: int = 0,
        idle_groups: IdleGroups = IdleGroups.EQUAL_REWARDS,
        max_lost_in_a_row: int | None = None,
    ) -> None:
        """`tasks` is told which tasks are consumed. `idle_groups` are those that teach the algorithm nothing.

        The run ends after `max_lost_in_a_row` episodes in a row that give no group to train.
        """
        self.rules = rules
        self.tasks = tasks
        self.ledger = ledger
        self.recent = RecentEpisodes()
        self.on_dropped: Callable[[DropReason, Sequence[str]], None] = lambda reason, ids: None
        """Function that is told the ids of episodes that waited for a step and are dropped instead, and the reason."""
        self.flow: GroupFlow[ScoredEpisode, PendingGroup, FinishedGroup] = GroupFlow(
            rules, is_idle=lambda group: group.is_idle(idle_groups), version=version
        )
        self._ids: set[str] = set()
        """The ids of the open groups."""
        self._changed = asyncio.Event()
        self._is_held = False
        self._failure: BaseException | None = None
        self._streak = FailureStreak(max_lost_in_a_row or max(64, 2 * rules.gate.batch))
        self._dropped: Counter[DropReason] = Counter()
        """Episodes that were dropped since the last batch."""

    # --- the gate's numbers ------------------------------------------------------------------

    @property
    def version(self) -> int:
        """The version that all engines have confirmed to serve."""
        return self.flow.version

    def set_version(self, version: int) -> None:
        """Note that the engines serve `version`. More groups may then start, and running siblings that no step can
        train any more are cancelled."""
        for stop in self.flow.set_version(version):
            stop.group.stop(stop.sibling, stop.reason)
        self._notify()

    @property
    def num_running(self) -> int:
        return self.flow.num_running

    @property
    def num_slots_held(self) -> int:
        """Slots of trained, finished and running groups. Each group counts whole."""
        return self.flow.num_slots_held

    def has_room(self) -> bool:
        """Whether one more group may start."""
        return self._failure is None and not self._is_held and self.flow.has_room()

    # --- the side of the source ----------------------------------------------------------------

    @property
    def changed(self) -> asyncio.Event:
        """The event that is set at the next change. Take the event *before* reading the state, then wait on it."""
        return self._changed

    def admit(self, issued: IssuedTask, *, size: int | None = None) -> PendingGroup:
        """A new pending group. `size` is for live callers, whose groups may be smaller."""
        size = self.rules.group_size if size is None else size
        group = PendingGroup(f"{issued.task.id}.{issued.epoch}", issued, size=size)
        assert group.id not in self._ids, f"group {group.id} was admitted twice"
        self._ids.add(group.id)
        self.flow.admit(group)
        return group

    def accept(self, group: PendingGroup, member: ScoredEpisode) -> None:
        """Note that a sibling ended with a reward. It no longer counts as running."""
        self.flow.accept(group, member)
        self.ledger.buffer(1)
        self.recent.kept(
            member.duration_s,
            truncated=member.truncated,
            num_sampled=member.num_sampled,
            called_tools=member.called_tools,
        )
        self._notify()

    def reject(self, group: PendingGroup, rejection: Rejection, *, ran_s: float = 0.0) -> None:
        """Note that a sibling will not be trained. The group keeps its slot."""
        self.flow.reject(group)
        self._book_drop(rejection.reason, 1, buffered=False)
        self._notify()
        if rejection.reason is DropReason.STALE:
            self.recent.stopped(ran_s)
        elif rejection.reason not in _OF_NO_EPISODE:
            self.recent.rejected(rejection.reason, ran_s)
        if rejection.reason is not DropReason.GROUP_INCOMPLETE:  # else another sibling is the cause
            group.rejection = rejection

    def resolve(self, group: PendingGroup) -> None:
        """Finish a group whose siblings have all ended, if enough of them are valid; else drop it."""
        self._ids.remove(group.id)
        reason = self.flow.resolve(group)
        self._notify()
        if reason is None:
            self._streak.end()
            return
        self._drop(reason, group.members)
        if reason is not DropReason.CANCELLED:
            self.tasks.consume(group.issued.key)
            self._count_as_lost(group, reason)

    def _count_as_lost(self, group: PendingGroup, reason: DropReason) -> None:
        cause = group.rejection or Rejection(reason, "the other siblings were dropped")
        if reason is DropReason.TRUNCATED:
            cause = Rejection(reason, _ALL_MASKED)
        if cause.reason is DropReason.ROLLED_BACK or self._is_held:
            return
        if hopeless := self._streak.lose(group.size, cause):
            self.fail(hopeless)

    def hold(self, is_down: bool) -> None:
        """Hold all groups back while the engine is down: none starts, and dropped groups do not count as failures."""
        self._is_held = is_down
        self._streak.end()
        self._notify()

    def shed_surplus(self) -> None:
        """Drop the groups of live callers that would be too old before a step could take them."""
        self._book(self.flow.shed_surplus())

    def exhaust(self) -> None:
        """Note that no more groups will be admitted."""
        self.flow.is_exhausted = True
        self._notify()

    def fail(self, error: BaseException) -> None:
        """Have `cut_batch` raise `error`. The first error wins, because it is usually the cause."""
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
        self.flow.begin_cut(version)
        name = f"rollouts: the {self.rules.gate.batch} episodes of step {version + 1}"
        async with waiting(name, timeout_s=timeout_s):
            while True:
                changed = self._changed
                if self._failure is not None:
                    raise self._failure
                self._shed()
                cut_at = self.flow.cut_time(clock())
                left_s = None if cut_at is None else cut_at - clock()
                if left_s is not None and left_s <= 0:
                    break
                await _wait_up_to(changed, left_s)
        enough_at = self.flow.enough_at
        assert enough_at is not None, "a batch is cut once there are enough groups"
        return self._cut(version, waited_s=enough_at - began, held_s=clock() - enough_at)

    def mark_trained(self, batch: RolloutBatch) -> None:
        """Note that the step is done: the batch's episodes are trained, and its tasks consumed."""
        self.ledger.train(batch.num_episodes)
        for group in batch.finished:
            self.tasks.consume(group.issued.key)
        self.tasks.end_step()

    def take_back(self, batch: RolloutBatch, *, valid_from: int) -> None:
        """Drop `batch`. From the next batch on, train no token that was sampled by a version before `valid_from`."""
        self._drop(DropReason.ROLLED_BACK, [*iter_members(batch.finished)])
        for group in batch.finished:
            self.tasks.consume(group.issued.key)
        self.flow.take_back(valid_from=valid_from)

    def waiting_groups(self) -> list[str]:
        """The groups that are neither trained nor dropped, which a resumed run plays again."""
        waiting: list[PendingGroup | FinishedGroup] = [*self.flow.open, *self.flow.finished]
        return [group.id for group in waiting]

    # --- internals ---------------------------------------------------------------------------

    def _cut(self, version: int, *, waited_s: float, held_s: float) -> RolloutBatch:
        taken = self.flow.cut()
        self.recent.grouped(taken)
        for member in iter_members(taken):
            self.recent.aged(member.duration_s, stale=False)
        metrics = {
            "waited_s": waited_s,
            "held_s": held_s,
            "buffered_groups": float(len(self.flow.finished)),
            "running": float(self.num_running),
            **batch_metrics(taken, version=version),
            **self.tasks.metrics(),
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
            notices=(*self.recent.notices(), *self.tasks.notices()),
            exhausted=self.flow.is_exhausted and not self.flow.open and not self.flow.finished,
        )

    def _shed(self) -> None:
        """Drop the members and groups that the waiting step may not train."""
        drops = self.flow.shed()
        for drop in drops:
            if drop.reason is DropReason.STALE:
                for member in drop.members:
                    self.recent.aged(member.duration_s, stale=True)
        self._book(drops)

    def _book(self, drops: Sequence[Drop[ScoredEpisode, FinishedGroup]]) -> None:
        for drop in drops:
            self._drop(drop.reason, drop.members)
            if drop.given_up is not None:
                self.tasks.consume(drop.given_up.issued.key)
                self._notify()  # slots were given back

    def _drop(self, reason: DropReason, members: Sequence[ScoredEpisode]) -> None:
        """Drop episodes that waited for a step."""
        self._book_drop(reason, len(members), buffered=True)
        if members:
            self.on_dropped(reason, [member.trajectories[0].episode_id for member in members])

    def _book_drop(self, reason: DropReason, count: int, *, buffered: bool) -> None:
        if count:
            self.ledger.drop(reason, count, buffered=buffered)
            self._dropped[reason] += count

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


async def _wait_up_to(event: asyncio.Event, seconds: float | None) -> None:
    """Wait for the event, at most for `seconds`. None: the wait for the batch has a deadline, so this wait needs none."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
