"""The node's own side: plays the episodes that the main process sends, and reports those that have ended.

An episode that has ended is kept until the main process has acknowledged it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

from areal_sdk.errors import InfrastructureError
from areal_sdk.errors.blame import trace_of
from areal_sdk.process import Channel, ChannelClosedError, clean_text
from areal_sdk.process.frames import Buffer, view_of
from areal_sdk.process.services import BEAT_S, REPORT_AFTER_S, Stream, answer_until_closed, at_once
from areal_sdk.rollout.agents.runner import EpisodeRunner
from areal_sdk.rollout.nodes.episode_wire import (
    NodeCalls,
    NodeReport,
    Orders,
    Stage,
    pack_episode,
    unpack_request,
    with_values,
)
from areal_sdk.rollout.nodes.triaged import pack_triaged
from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.telemetry.live.waits import current_waits
from areal_sdk.types import Episode, ErrorKind, Outcome

logger = logging.getLogger(__name__)

EXIT_GRACE_S = 1.0
"""Time for episodes to clean up when the channel closes."""


class NodeServer(NodeCalls):
    """Plays episodes until the main process closes the channel."""

    def __init__(
        self,
        channel: Channel,
        *,
        make_runner: Callable[[Stage], EpisodeRunner],
        told: Callable[[Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        """`told` is called with each state of the engine that the main process sends."""
        self._channel = channel
        self._make_runner = make_runner
        self._told = told
        self._loop = asyncio.get_running_loop()
        self._runners: dict[Stage, asyncio.Task[EpisodeRunner]] = {}
        self._stack = AsyncExitStack()
        self._playing: dict[int, asyncio.Task[None]] = {}
        self._ages: dict[int, Callable[[], int | None]] = {}
        self._known_ages: dict[int, int | None] = {}
        """Versions of the first tokens of running episodes, as they were last reported."""
        self._kept: dict[int, Sequence[Buffer]] = {}
        """Episodes that have ended, until they are acknowledged."""
        self._unreported: list[int] = []
        self._reports: Stream[NodeReport] | None = None

    async def run(self) -> None:
        """Play until the channel closes."""
        async with self._stack:
            beat = asyncio.create_task(self._beat(), name="node beat")
            try:
                await answer_until_closed(self._channel, self)
            finally:
                tasks = [beat, *self._playing.values()]
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks, timeout=EXIT_GRACE_S)

    def reports(self) -> Stream[NodeReport]:
        self._reports = Stream()
        self._unreported = [*self._kept]
        self._loop.call_soon(self._report)
        return self._reports

    @at_once  # so an agent that blocks the event loop is not taken for a dead node
    def play(self, orders: Orders) -> None:
        for number in orders.acknowledged:
            self._kept.pop(number, None)
        for number, stage, packed in orders.episodes:
            playing = self._play(number, orders.stages[stage], view_of(packed))
            task = self._playing[number] = asyncio.create_task(playing, name=f"order {number}")
            task.add_done_callback(partial(self._forget, number))

    @at_once
    def stop(self, numbers: list[int]) -> None:
        for number in numbers:
            if (task := self._playing.get(number)) is not None:
                task.cancel()

    async def engine_state(self, state: Mapping[str, Any]) -> None:
        await self._told(state)

    def _forget(self, number: int, _: object) -> None:
        for book in (self._playing, self._ages, self._known_ages):
            book.pop(number, None)

    async def _play(self, number: int, stage: Stage, packed: memoryview) -> None:
        request, values = unpack_request(packed)
        try:
            request = with_values(request, values)
            runner = await self._runner(stage)
            self._ages[number] = lambda: runner.oldest_version(request.id)
            buffers = _packed(await runner.run(request), stage)
        except InfrastructureError as exc:
            buffers = _packed(_failed(request, str(exc)), stage)
        except Exception as exc:
            logger.exception("episode %s", request.id)
            message = f"{type(exc).__name__}: {exc}"
            buffers = [clean_text(f"{message}\n{trace_of(exc)}").encode()]  # the run ends with it
        self._kept[number] = buffers
        self._unreported.append(number)
        if len(self._unreported) == 1:
            self._loop.call_later(REPORT_AFTER_S, self._report)

    async def _runner(self, stage: Stage) -> EpisodeRunner:
        """The runner of a stage. The first episode of the stage opens it, and the others wait."""
        opening = self._runners.get(stage)
        if opening is None:
            entering = self._stack.enter_async_context(self._make_runner(stage))
            opening = self._runners[stage] = asyncio.create_task(entering, name="open runner")
        try:
            return await asyncio.shield(opening)
        except Exception:  # the next episode tries again
            if self._runners.get(stage) is opening:
                del self._runners[stage]
            raise

    def _report(
        self,
        ages: Sequence[tuple[int, int | None]] = (),
        waits: Sequence[tuple[str, float, float]] | None = None,
    ) -> None:
        """Send a report of the episodes that have ended, with `ages` and `waits` as in `NodeReport`."""
        if self._reports is None or not (self._unreported or waits is not None):
            return
        numbers, self._unreported = self._unreported, []
        kept = [self._kept[number] for number in numbers]
        ended = [(number, len(buffers)) for number, buffers in zip(numbers, kept, strict=True)]
        together = [buffer for buffers in kept for buffer in buffers]
        with suppress(ChannelClosedError):
            self._reports.send(
                NodeReport(ended, together, [*ages], None if waits is None else [*waits])
            )

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            ages = []
            for number, read in self._ages.items():
                age = read()
                if age != self._known_ages.get(number):
                    self._known_ages[number] = age
                    ages.append((number, age))
            waits = [(wait.name, wait.waited_s, wait.timeout_s) for wait in current_waits()]
            self._report(ages, waits)


def _packed(episode: Episode, stage: Stage) -> Sequence[Buffer]:
    if stage.truncated is None:
        return pack_episode(episode)
    return pack_triaged(episode, truncated=stage.truncated)


def _failed(request: EpisodeRequest, message: str) -> Episode:
    outcome = Outcome.failed(ErrorKind.INFRASTRUCTURE, message)
    return Episode(
        request.id,
        request.task,
        (),
        outcome,
        request.group,
        request.sibling,
        request.epoch,
        request.attempt,
    )
