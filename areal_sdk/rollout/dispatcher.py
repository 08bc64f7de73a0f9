"""Starts a group of episodes whenever the gate has room, and never waits for a batch.

tasks -> room in the gate? -> admit a group -> its siblings play -> triage -> buffer
                ^                                                       |
                +---------- a drop, a new version <---------------------+
"""

import asyncio
import logging
from functools import partial
from typing import Protocol, Self

from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.groups import (
    EpisodeObserver,
    PendingGroup,
    Rejection,
    TriagedEpisode,
    Truncated,
)
from areal_sdk.rollout.source import STOP_TIMEOUT_S, EpisodeSource
from areal_sdk.rollout.tasks import EpisodeRequest, TaskSource
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.telemetry.live.waits import waiting
from areal_sdk.types import Episode

logger = logging.getLogger(__name__)


class WatchesEpisodes(Protocol):
    """The part of a runner that the dispatcher uses."""

    async def run(self, request: EpisodeRequest) -> Episode | TriagedEpisode:
        """Play an episode. Failures of the episode are in its outcome; only bugs raise."""
        ...

    def oldest_version(self, episode_id: str) -> int | None:
        """The version of the first token of a running episode; None if there is no token yet."""
        ...


STALLED_S = 4 * 3600.0
"""Seconds after which a run counts as stalled, if no episode ended and no new weights came."""


class Dispatcher(EpisodeSource):
    """Plays tasks, and keeps the pipeline as full as the gate allows."""

    def __init__(
        self,
        buffer: TrajectoryBuffer,
        *,
        runner: WatchesEpisodes,
        tasks: TaskSource,
        truncated: Truncated = "score",
        on_episode: EpisodeObserver = lambda episode, triaged: None,
        stalled_s: float = STALLED_S,
    ) -> None:
        """The run fails after `stalled_s` in which no episode ends and no version is published."""
        super().__init__(buffer, tasks=tasks, truncated=truncated, on_episode=on_episode)
        self._runner = runner
        self._tasks = tasks
        self._stalled_s = stalled_s
        self._main: asyncio.Task[None] | None = None
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        self._main = asyncio.create_task(self._dispatch(), name="dispatcher")
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._main is not None
        self._main.cancel()
        # The runner abandons user code that ignores its cancellation, so this ends in time.
        _, unfinished = await asyncio.wait({self._main}, timeout=STOP_TIMEOUT_S)
        if unfinished:
            logger.error("episodes still run %g s after they were cancelled", STOP_TIMEOUT_S)
        if error[0] is None and self._failure is not None:
            raise self._failure  # no later `cut_batch` will raise it

    async def _dispatch(self) -> None:
        try:
            async with asyncio.TaskGroup() as groups:
                while self._admit_all(groups):
                    what = f"dispatcher: a slot in the gate (version {self.buffer.version})"
                    async with waiting(what, timeout_s=self._stalled_s, is_throttle=True):
                        await self.buffer.changed.wait()
            self.buffer.exhaust()
        except* Exception as group:  # noqa: BLE001 - a bug: `cut_batch` raises it
            self._failure = _first(group)
            self.buffer.fail(self._failure)

    def _admit_all(self, groups: asyncio.TaskGroup) -> bool:
        """Admit groups until the gate is full; False once the tasks have run out."""
        while self.buffer.has_room():
            issued = self._tasks.next()
            if issued is None:
                return False
            group = self.buffer.admit(issued)
            groups.create_task(self._play_group(group), name=f"group {group.id}")
        return True

    async def _play_group(self, group: PendingGroup) -> None:
        try:
            async with asyncio.TaskGroup() as siblings:
                for sibling in range(group.size):
                    name = f"{group.id}.{sibling}"
                    group.tasks.append(siblings.create_task(self._play(group, sibling), name=name))
        except asyncio.CancelledError:
            group.give_up = DropReason.CANCELLED
            raise
        finally:
            self.buffer.resolve(group)

    async def _play(self, group: PendingGroup, sibling: int) -> None:
        """Play one sibling, and give its episode to the buffer."""
        issued = group.issued
        request = EpisodeRequest(
            f"{group.id}.{sibling}",
            issued.task,
            group=group.id,
            sibling=sibling,
            epoch=issued.epoch,
        )
        clock = asyncio.get_running_loop().time
        began = clock()
        self.begin(group, sibling, partial(self._runner.oldest_version, request.id))
        try:
            episode = await self._runner.run(request)
        except BaseException:  # cancelled, or a bug: book it either way
            reason = group.stopped.get(sibling) or group.give_up or DropReason.CANCELLED
            rejection = Rejection(reason, "it was stopped on the way")
            self.cut_off(group, sibling, rejection, ran_s=clock() - began)
            raise
        triaged = self.end(group, sibling, episode)
        if isinstance(triaged, Rejection) and self.buffer.rules.drops_incomplete:
            self._give_up(group)

    def _give_up(self, group: PendingGroup) -> None:
        """Stop the other siblings of a group that will not be trained."""
        group.give_up = DropReason.GROUP_INCOMPLETE
        for sibling, task in enumerate(group.tasks):
            if not task.done() and task is not asyncio.current_task():
                group.stop(sibling, DropReason.GROUP_INCOMPLETE)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error inside, which is usually the cause of the others."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
