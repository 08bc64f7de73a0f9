"""The node's own side: plays the episodes that the main process sends, and reports those that have ended.

An episode that has ended is kept until the main process has acknowledged it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from typing import Any

from areal_sdk.blame import trace_of
from areal_sdk.errors import InfrastructureError
from areal_sdk.gateway.sampling.request import SamplingPolicy
from areal_sdk.process import Channel, ChannelClosedError, Request, clean_text
from areal_sdk.process.frames import Buffer
from areal_sdk.process.inbox import Inbox, reply_after
from areal_sdk.process.pools.background import BackgroundTasks
from areal_sdk.rollout.agents.runner import EpisodeRunner
from areal_sdk.rollout.nodes.episode_wire import Stage, pack_episode, unpack_request, with_values
from areal_sdk.rollout.nodes.triaged import pack_triaged
from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.telemetry.live.waits import current_waits
from areal_sdk.types import Episode, ErrorKind, Outcome

logger = logging.getLogger(__name__)

NEWS = "news of the engine"
REPORT_AFTER_S = 0.05
"""Episodes that end within this time are reported together."""
BEAT_S = 0.25
"""Seconds between two reports of ages and waits."""
EXIT_GRACE_S = 1.0
"""Time for episodes to clean up when the channel closes."""


class NodeServer:
    """Plays episodes until the main process closes the channel."""

    def __init__(
        self,
        channel: Channel,
        *,
        make_runner: Callable[[Stage], EpisodeRunner],
        told: Callable[[Mapping[str, Any]], Awaitable[None]],
    ) -> None:
        """`told` is called with the state of the engine's entrance."""
        # An agent that blocks the event loop is not taken for a dead node.
        self._inbox = Inbox(channel, self._handle, replied_at_once=("play", "stop"))
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
        self._reports: Request | None = None
        self._background = BackgroundTasks()

    async def run(self) -> None:
        """Play until the channel closes."""
        async with self._stack:
            beat = asyncio.create_task(self._beat(), name="node beat")
            try:
                await self._inbox.until_closed()
            finally:
                tasks = [beat, *self._playing.values(), *self._background]
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks, timeout=EXIT_GRACE_S)

    def _handle(self, request: Request) -> None:
        match request.method:
            case "reports":
                self._reports = request
                self._unreported = [*self._kept]
                self._report()
            case "play":
                self._begin(request)
            case "stop":
                for number in request.payload:
                    if (task := self._playing.get(number)) is not None:
                        task.cancel()
            case "engine":
                news = self._told(request.payload)
                self._background.begin(reply_after(news, request, what=NEWS), name=NEWS)
            case other:
                request.fail(ValueError(f"no method {other!r}"))

    def _begin(self, request: Request) -> None:
        for number in request.payload["acknowledged"]:
            self._kept.pop(number, None)
        stages = [
            Stage(split, SamplingPolicy(*sampling), truncated)
            for split, sampling, truncated in request.payload["stages"]
        ]
        orders = request.payload["orders"]
        for (number, stage), packed in zip(orders, request.buffers, strict=True):
            playing = self._play(number, stages[stage], packed)
            task = self._playing[number] = asyncio.create_task(playing, name=f"order {number}")
            task.add_done_callback(partial(self._forget, number))

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

    def _report(self, **news: Any) -> None:
        """Send what has ended, and `news`."""
        if self._reports is None or not (self._unreported or news):
            return
        numbers, self._unreported = self._unreported, []
        kept = [self._kept[number] for number in numbers]
        ended = [[number, len(buffers)] for number, buffers in zip(numbers, kept, strict=True)]
        with suppress(ChannelClosedError):
            self._reports.emit(
                {"ended": ended, **news}, [buffer for buffers in kept for buffer in buffers]
            )

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            ages = []
            for number, read in self._ages.items():
                age = read()
                if age != self._known_ages.get(number):
                    self._known_ages[number] = age
                    ages.append([number, age])
            waits = [[wait.name, wait.waited_s, wait.timeout_s] for wait in current_waits()]
            self._report(ages=ages, waits=waits)


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
