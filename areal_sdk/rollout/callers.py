"""Episodes of a live run: every session of a caller of the gateway is an episode.

    session opens -> running in the ledger -> session ends, with or without reward -> triage -> buffer

The gate cannot refuse a caller. The check of every sample bounds staleness, and the quotas of the
accounts bound the flow. The ledger counts these episodes as in any run.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Self

from areal_sdk.errors import ConfigError, EpisodeError
from areal_sdk.gateway.sessions.external import SPLIT, ExternalSession, ExternalSessions
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.gateways.pool import GatewayPool
from areal_sdk.rollout.gateways.sessions import GatewaySession
from areal_sdk.rollout.groups import EpisodeObserver, PendingGroup, Rejection, Truncated
from areal_sdk.rollout.judging.reward_pool import RewardPool
from areal_sdk.rollout.judging.verdicts import posted_outcome
from areal_sdk.rollout.source import STOP_TIMEOUT_S, EpisodeSource
from areal_sdk.rollout.tasks import IssuedTask, TaskBook, TaskKey
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.types import Episode, ErrorKind, Outcome, OutcomeKind, Task

logger = logging.getLogger(__name__)

MEASURED = "eval"
"""The split of sessions that callers open to see how good the policy is."""

CallerSession = ExternalSession | GatewaySession
"""A session in this process, or in a gateway process."""


class CallerTasks(TaskBook):
    """The task source of a live run. Callers bring their own tasks, so its state is a counter."""

    def __init__(self) -> None:
        self._next = 0

    def next(self, caller: str) -> IssuedTask:
        """The task of a session that `caller` opened."""
        issued = IssuedTask(Task(caller), epoch=self._next, position=0, caller=caller)
        self._next += 1
        return issued

    def consume(self, key: TaskKey) -> None:
        """Do nothing: a caller's task cannot be issued again."""

    def state(self) -> dict[str, object]:
        """JSON for a checkpoint."""
        return {"next": self._next}

    def restore(self, state: Mapping[str, object]) -> None:
        number = state.get("next")
        if not isinstance(number, int):
            raise ConfigError(f"this checkpoint is not of a run that learns from callers: {state}")
        self._next = number


class CallerEpisodes(EpisodeSource):
    """Turns the sessions of callers into episodes. The end of `async with` ends the episodes and not the sessions:
    observers are still told of each session when it is over."""

    def __init__(
        self,
        buffer: TrajectoryBuffer,
        *,
        sessions: ExternalSessions | GatewayPool,
        tasks: CallerTasks,
        truncated: Truncated = "score",
        rewards: RewardPool | None = None,
        on_episode: EpisodeObserver = lambda episode, triaged: None,
        on_untrained: Callable[[Episode, str], None] = lambda episode, split: None,
    ) -> None:
        """`rewards` score the episodes whose caller posted no reward.

        `on_untrained` is called with sessions that are not counted in the ledger: those of the split
        `eval`, and those that opened after the end of learning.
        """
        super().__init__(buffer, tasks=tasks, truncated=truncated, on_episode=on_episode)
        self._sessions = sessions
        self._tasks = tasks
        self._rewards = rewards
        self._on_untrained = on_untrained
        self._groups: dict[str, PendingGroup] = {}
        """Groups with siblings still to open, by id."""
        self._broken: frozenset[str] = frozenset()
        """Groups that had lost some of their siblings before the run began."""
        self._ends: dict[str, asyncio.Future[None]] = {}
        """A future for each session by id. It is done when the session cannot change any more."""
        self._dropped: dict[str, Rejection] = {}
        """Sessions that are not trained, although their callers still use them."""
        self._has_ended = False
        self._playing: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._broken = _broken_groups(self._sessions)  # the gateway listens before the run begins
        self._sessions.observe(self)
        self._broken = frozenset()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._has_ended = True
        self._sessions.end_learning()
        playing = set(self._playing)
        for task in playing:
            task.cancel()
        if playing:
            await asyncio.wait(playing, timeout=STOP_TIMEOUT_S)
        self._ends.clear()  # of sessions so new that their episodes had not begun

    def opened(self, live: CallerSession) -> None:
        if live.split == MEASURED or self._has_ended:
            return
        group = self._group_of(live)
        end = self._ends[live.id] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._play(group, live, end), name=f"live {live.id}")
        group.tasks.append(task)
        self._playing.add(task)
        task.add_done_callback(self._playing.discard)

    def finished(self, live: CallerSession) -> None:
        if (end := self._ends.pop(live.id, None)) is not None and not end.done():
            end.set_result(None)
        elif (rejection := self._dropped.pop(live.id, None)) is not None:
            self.tell(to_episode(live), rejection)
        elif live.split == MEASURED:
            self._on_untrained(to_episode(live), MEASURED)
        elif self._has_ended:
            self._keep_late(to_episode(live))

    def _keep_late(self, episode: Episode) -> None:
        if episode.turns:
            self._on_untrained(episode, SPLIT)

    def _group_of(self, live: CallerSession) -> PendingGroup:
        """The group of a session. A session that was opened alone gets a group of its own.

        So does a session whose group has another size than the run's, or has lost siblings.
        """
        is_compared = live.group_size == self.buffer.rules.group_size
        if not live.group or not is_compared or live.group in self._broken:
            return self._admit(live, size=1)
        if live.sibling == 0:
            self._groups[live.group] = self._admit(live, size=live.group_size)
        group = self._groups[live.group]
        if live.sibling == live.group_size - 1:
            del self._groups[live.group]
        return group

    def _admit(self, live: CallerSession, *, size: int) -> PendingGroup:
        return self.buffer.admit(self._tasks.next(live.caller), size=size)

    async def _play(
        self, group: PendingGroup, live: CallerSession, end: "asyncio.Future[None]"
    ) -> None:
        """Wait for the end of the session, and give its episode to the buffer."""
        clock = asyncio.get_running_loop().time
        began = clock()
        sibling = live.sibling if group.size > 1 else 0
        self.begin(group, sibling, lambda: live.oldest_version)
        try:
            await end
            self.end(group, sibling, await self._judged(to_episode(live, group)))
            self._resolve_if_whole(group)
        except asyncio.CancelledError:  # too old, or the run ends: the books close either way
            reason = group.stopped.get(sibling, DropReason.CANCELLED)
            is_over = self._ends.get(live.id) is not end  # `finished` was called before
            rejection = _why_cut_off(reason, is_over=is_over)
            self.cut_off(group, sibling, rejection, ran_s=clock() - began)
            self._resolve_if_whole(group)
            if is_over:
                self.tell(to_episode(live, group), rejection)
            else:
                self._dropped[live.id] = rejection
            raise
        except Exception as exc:  # noqa: BLE001 - a bug: `cut_batch` raises it
            self.buffer.fail(exc)
        finally:
            if self._ends.get(live.id) is end:  # else its id names a later session
                del self._ends[live.id]

    def _resolve_if_whole(self, group: PendingGroup) -> None:
        """Resolve the group if this was its last sibling to end."""
        if not group.num_running:
            self.buffer.resolve(group)
            self.buffer.shed_surplus()

    async def _judged(self, episode: Episode) -> Episode:
        """The episode, scored by the reward functions if its caller posted no reward."""
        if self._rewards is None or episode.outcome.kind is not OutcomeKind.ABSTAIN:
            return episode
        if not episode.turns:
            return episode
        try:
            outcome = await self._rewards.score(episode)
        except EpisodeError as exc:
            outcome = Outcome.failed(exc.kind, str(exc))
        return replace(episode, outcome=outcome)


def _why_cut_off(reason: DropReason, *, is_over: bool) -> Rejection:
    """The reason why a session was cut off. `is_over`: its caller had ended it, and its rewards were being computed."""
    whose = "judge" if is_over else "caller"
    if reason is DropReason.CANCELLED:
        return Rejection(reason, f"learning ended before its {whose} was done")
    if reason is DropReason.ROLLED_BACK:
        return Rejection(reason, "the weights that answered were taken back")
    return Rejection(reason, f"its {whose} was slower than the training")


def _broken_groups(sessions: Iterable[CallerSession]) -> frozenset[str]:
    """The groups that have some but not all of their siblings open."""
    is_open = [live for live in sessions if live.is_open]
    num_open = Counter(live.group for live in is_open)
    return frozenset(live.group for live in is_open if num_open[live.group] < live.group_size)


def to_episode(live: CallerSession, group: PendingGroup | None = None) -> Episode:
    """The episode of a session, with the posted rewards."""
    epoch = group.issued.epoch if group is not None else 0
    if isinstance(live, GatewaySession):
        return live.read(epoch=epoch)
    session = live.session
    return Episode(
        id=live.id,
        task=Task(live.caller, {"key": live.key} if live.key else {}),
        turns=tuple(session.turns),
        outcome=_outcome(session),
        group=live.group,
        sibling=live.sibling,
        epoch=epoch,
        truncated=session.truncated,
        duration_s=live.used_at - live.began_at,
    )


def _outcome(session: Session) -> Outcome:
    """The outcome of a session: its posted rewards. A fault makes it an infrastructure error; without a reward it abstains."""
    if session.faults:
        return Outcome.failed(ErrorKind.INFRASTRUCTURE, "; ".join(session.faults))
    if not session.turns:
        return Outcome.abstained("its caller got no answer, or waited for none")
    posted = posted_outcome(session.rewards, num_turns=len(session.turns))
    return posted or Outcome.abstained("nobody posted a reward in time")
