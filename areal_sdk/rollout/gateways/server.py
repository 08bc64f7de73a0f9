"""The process's own side of a gateway process: tells the main process of its sessions, and is told the engine's
state."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from areal_sdk.engine import (
    EngineClient,
    EngineInfo,
    GenerateChunk,
    GenerateRequest,
    InferenceEngine,
)
from areal_sdk.errors import EngineError
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.sessions.external import ExternalSession
from areal_sdk.process import Channel, ChannelClosedError, Request
from areal_sdk.process.frames import Buffer
from areal_sdk.process.inbox import Inbox, reply_after
from areal_sdk.process.pools.background import BackgroundTasks
from areal_sdk.types import WeightUpdate

REPORT_AFTER_S = 0.05
"""Seconds over which events are collected and then reported together."""
BEAT_S = 0.25
"""Seconds between two reports of the ages of open sessions."""
NEWS = "news of the engine"
ANSWER_S = 600.0
"""Seconds that the main process may take for a request."""

Pack = Callable[[ExternalSession], Sequence[Buffer]]
"""Function that packs a finished session into buffers for the main process."""


class GatewayServer:
    """Serves until the main process closes the channel. Observes the sessions of its gateway."""

    def __init__(self, channel: Channel, engine: "SharedEngine", *, pack: Pack) -> None:
        self.engine = engine
        self._inbox = Inbox(channel, self._handle)
        self._pack = pack
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._open: dict[str, tuple[int, ExternalSession]] = {}
        self._ages: dict[int, int | None] = {}
        """Versions of the first tokens of open sessions, as they were last reported."""
        self._events: list[Any] = []
        self._buffers: list[Buffer] = []
        self._is_due = False
        self._reports: Request | None = None
        self._asked: dict[int, asyncio.Future[str]] = {}
        self._background = BackgroundTasks()

    async def run(self, gateway: Gateway) -> None:
        """Serve until the channel closes."""
        self._gateway = gateway
        self._background.begin(self._beat(), name="ages")
        try:
            await self._inbox.until_closed()
        finally:
            await self._background.cancel()

    # what the gateway tells

    def opened(self, live: ExternalSession) -> None:
        number = next(self._numbers)
        self._open[live.id] = number, live
        self._tell(
            {
                "opened": number,
                "id": live.id,
                "caller": live.caller,
                "split": live.split,
                "group": live.group,
                "group_size": live.group_size,
                "sibling": live.sibling,
            }
        )

    def finished(self, live: ExternalSession) -> None:
        number, _ = self._open.pop(live.id)
        self._ages.pop(number, None)
        buffers = self._pack(live)
        self._buffers += buffers
        version = self.engine.version
        self._tell({"finished": number, "num_buffers": len(buffers), "version": version})

    async def ask(self, what: str) -> None:
        """Have the main process do something to the engine: `pause` or `resume`."""
        number = next(self._numbers)
        answer = self._asked[number] = self._loop.create_future()
        self._tell({"asked": number, "what": what})
        try:
            async with asyncio.timeout(ANSWER_S):
                error = await answer
        except TimeoutError:
            raise EngineError(f"the main process did not {what} the engine in time") from None
        finally:
            del self._asked[number]
        if error:
            raise EngineError(error)

    def _tell(self, event: Mapping[str, Any]) -> None:
        self._events.append(event)
        if not self._is_due:
            self._is_due = True
            self._loop.call_later(REPORT_AFTER_S, self._report)

    def _report(self) -> None:
        self._is_due = False
        if self._reports is None:
            return
        events, self._events = self._events, []
        buffers, self._buffers = self._buffers, []
        with suppress(ChannelClosedError):
            self._reports.emit(events, buffers)

    async def _beat(self) -> None:
        """Report ages, and that this process lives."""
        while True:
            await asyncio.sleep(BEAT_S)
            ages = []
            for number, live in self._open.values():
                if (age := live.oldest_version) != self._ages.get(number):
                    self._ages[number] = age
                    ages.append([number, age])
            self._tell({"ages": ages})

    # what the main process tells

    def _handle(self, request: Request) -> None:
        match request.method:
            case "reports":
                self._reports = request
                self._report()
            case "engine":
                news = self.engine.client.told(request.payload)
                self._background.begin(reply_after(news, request, what=NEWS), name=NEWS)
            case "version":
                self.engine.hear_of(request.payload)
                request.reply()
            case "answer":
                number, error = request.payload
                if (answer := self._asked.get(number)) is not None and not answer.done():
                    answer.set_result(error)
                request.reply()
            case "over":
                self._gateway.external.end_learning()
                request.reply()
            case "end":
                self._background.begin(self._end(request), name="end")
            case other:
                request.fail(ValueError(f"no method {other!r}"))

    async def _end(self, request: Request) -> None:
        """End all sessions, and answer when the main process has been told of them."""
        await self._gateway.aclose()
        self._report()
        reports, self._reports = self._reports, None
        if reports is not None:
            reports.finish()
        request.reply()


class SharedEngine(InferenceEngine):
    """The engine of the main process, for a gateway: its client, and the calls that only the main process can
    make."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.ask: Callable[[str], Awaitable[None]] = _nobody
        """Asks the main process to `pause` or to `resume`."""
        self._heard = 0

    def hear_of(self, version: int) -> None:
        """Note the version that the engine serves, as the main process says."""
        self._heard = version

    async def start(self) -> None:
        """The engine runs already."""

    @property
    def info(self) -> EngineInfo:
        return self.client.info

    @property
    def version(self) -> int:
        return max(self._heard, self.client.version)

    def stream(self, request: GenerateRequest) -> AsyncIterator[GenerateChunk]:
        return self.client.stream(request)

    async def update_weights(self, update: WeightUpdate) -> None:
        await self.client.update_weights(update)  # which refuses

    async def pause(self) -> None:
        await self.ask("pause")

    async def resume(self) -> None:
        await self.ask("resume")

    async def aclose(self) -> None:
        await self.client.aclose()


async def _nobody(what: str) -> None:
    raise EngineError(f"nobody can {what} the engine yet")
