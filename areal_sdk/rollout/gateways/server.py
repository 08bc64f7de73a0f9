"""The process's own side of a gateway process: tells the main process of its sessions, and is told the engine's state."""

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
from areal_sdk.errors import CallTimeoutError, EngineError, RemoteError
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.sessions.external import ExternalSession
from areal_sdk.process import Channel, ChannelClosedError
from areal_sdk.process.frames import Buffer
from areal_sdk.process.services import (
    BEAT_S,
    REPORT_AFTER_S,
    MainClient,
    Stream,
    answer_until_closed,
)
from areal_sdk.process.threads import BackgroundTasks
from areal_sdk.rollout.gateways.sessions import (
    EngineCalls,
    Finished,
    GatewayCalls,
    GatewayReport,
    Opened,
)
from areal_sdk.types import WeightUpdate

ANSWER_S = 600.0
"""Seconds that the main process may take to pause or resume the engine."""

Pack = Callable[[ExternalSession], Sequence[Buffer]]
"""Function that packs a finished session into buffers for the main process."""


class GatewayServer(GatewayCalls):
    """Serves until the main process closes the channel. Observes the sessions of its gateway."""

    def __init__(self, channel: Channel, engine: "SharedEngine", *, pack: Pack) -> None:
        self.engine = engine
        self._channel = channel
        self._main = MainClient[EngineCalls](channel)
        self._pack = pack
        self._loop = asyncio.get_running_loop()
        self._numbers = itertools.count(1)
        self._open: dict[str, tuple[int, ExternalSession]] = {}
        self._ages: dict[int, int | None] = {}
        """Versions of the first tokens of open sessions, as they were last reported."""
        self._events: list[Opened | Finished] = []
        self._is_due = False
        self._reports: Stream[GatewayReport] | None = None
        self._background = BackgroundTasks()

    async def run(self, gateway: Gateway) -> None:
        """Serve until the channel closes."""
        self._gateway = gateway
        self._background.begin(self._beat(), name="ages")
        try:
            await answer_until_closed(self._channel, self)
        finally:
            await self._background.cancel()

    # what the gateway tells

    def opened(self, live: ExternalSession) -> None:
        number = next(self._numbers)
        self._open[live.id] = number, live
        about = (live.id, live.caller, live.split, live.group, live.group_size, live.sibling)
        self._tell(Opened(number, *about))

    def finished(self, live: ExternalSession) -> None:
        number, _ = self._open.pop(live.id)
        self._ages.pop(number, None)
        self._tell(Finished(number, self.engine.version, list(self._pack(live))))

    async def ask(self, what: str) -> None:
        """Have the main process do something to the engine: `pause` or `resume`."""
        method = {"pause": EngineCalls.pause, "resume": EngineCalls.resume}[what]
        try:
            await self._main.call(method, timeout_s=ANSWER_S)
        except RemoteError as exc:
            raise EngineError(exc.message) from exc
        except CallTimeoutError:
            raise EngineError(f"the main process did not {what} the engine in time") from None

    def _tell(self, event: Opened | Finished) -> None:
        self._events.append(event)
        if not self._is_due:
            self._is_due = True
            self._loop.call_later(REPORT_AFTER_S, self._report)

    def _report(self, ages: Sequence[tuple[int, int | None]] = ()) -> None:
        self._is_due = False
        if self._reports is None:
            return
        events, self._events = self._events, []
        with suppress(ChannelClosedError):
            self._reports.send(GatewayReport(events, [*ages]))

    async def _beat(self) -> None:
        """Report, again and again, the versions of first tokens that changed: the main process sees that this one lives."""
        while True:
            await asyncio.sleep(BEAT_S)
            ages = []
            for number, live in self._open.values():
                if (age := live.oldest_version) != self._ages.get(number):
                    self._ages[number] = age
                    ages.append((number, age))
            self._report(ages)

    # what the main process tells

    def reports(self) -> Stream[GatewayReport]:
        self._reports = Stream()
        self._loop.call_soon(self._report)
        return self._reports

    async def engine_state(self, state: Mapping[str, Any]) -> None:
        await self.engine.client.told(state)

    def version(self, version: int) -> None:
        self.engine.hear_of(version)

    def over(self) -> None:
        self._gateway.external.end_learning()

    async def end(self) -> None:
        await self._gateway.aclose()
        self._report()
        reports, self._reports = self._reports, None
        if reports is not None:
            reports.finish()


class SharedEngine(InferenceEngine):
    """The engine of the main process, for a gateway: its client, and the calls that only the main process can make."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.ask: Callable[[str], Awaitable[None]] = _nobody
        """Asks the main process to `pause` or to `resume`."""
        self._heard = 0

    def hear_of(self, version: int) -> None:
        """Note the version that the engine serves, as the main process says."""
        self._heard = version

    async def start(self) -> None:
        """Do nothing: the engine runs already."""

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
