"""The gateway processes of a server, in the main process: kept running, and their sessions followed.

    clients --HTTP--> gateway processes --tokens--> engine
                          | sessions that open, and finished ones
                          v
                      GatewayPool --> the observer: a recorder, or `CallerEpisodes`

The sessions of a process that dies are lost; another process takes its place, with the same number.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from areal_sdk.engine import InferenceEngine
from areal_sdk.errors import ConfigError, ProcessError, raised_here
from areal_sdk.process import Child, ProcessSpec, spawn
from areal_sdk.process.pools.broadcast import Broadcast
from areal_sdk.process.pools.supervision import Restarts, started_again
from areal_sdk.process.services import LoopAnswering, StreamClient
from areal_sdk.process.threads import BackgroundTasks
from areal_sdk.rollout.gateways.sessions import (
    EngineCalls,
    Finished,
    GatewayCalls,
    GatewayReport,
    GatewaySession,
    Opened,
)

logger = logging.getLogger(__name__)

SILENT_S = 60.0
"""Seconds after which a process whose event loop reports nothing is killed, and replaced."""
WATCH_VERSION_S = 0.1
"""Pause between two looks at the version of the weights, which the gateways stamp on tokens."""
END_WITHIN_S = 10.0
"""Seconds that a process may take to report its last sessions when the server ends."""


class RemoteObserver(Protocol):
    """The part of a run that records the sessions of gateway processes, or learns from them."""

    def opened(self, live: GatewaySession) -> None: ...

    def finished(self, live: GatewaySession) -> None: ...


class GatewayProcess:
    """One process and the sessions that it holds."""

    def __init__(
        self, child: Child, take: Callable[["GatewayProcess", Opened | Finished], None]
    ) -> None:
        self.child = child
        self.calls = StreamClient[GatewayCalls](child)
        self.sessions: dict[int, GatewaySession] = {}
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done when the process is lost or has ended its reports; its result is the reason."""
        self._take = take
        self._background = BackgroundTasks()
        self._background.begin(self._read(), name=f"reports of {child.name}")

    @property
    def name(self) -> str:
        return self.child.name

    @property
    def is_lost(self) -> bool:
        return self.ended.done()

    async def aclose(self) -> None:
        await self._background.cancel()
        await self.child.aclose()

    async def _read(self) -> None:
        why = f"{self.child.name} ended its reports"
        try:
            reports = self.calls.stream(GatewayCalls.reports, idle_timeout_s=SILENT_S)
            async with aclosing(reports):
                async for report in reports:
                    self._take_all(report)
        except ProcessError as exc:
            why = str(exc)
            await self.child.kill()  # if it only does not answer
        except Exception as exc:
            logger.exception("a report of %s", self.child.name)
            why = f"its report cannot be read: {exc!r}"
            await self.child.kill()
        if not self.ended.done():
            self.ended.set_result(why)

    def _take_all(self, report: GatewayReport) -> None:
        for event in report.events:
            self._take(self, event)
        for number, age in report.ages:
            if (known := self.sessions.get(number)) is not None:
                known.oldest_version = age


class _Engine(EngineCalls):
    """The engine of the main process, as gateway processes may use it."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine

    async def pause(self) -> None:
        await self._engine.pause()

    async def resume(self) -> None:
        await self._engine.resume()


class GatewayPool:
    """The gateway processes of a server, made by `open_gateways`. Iterates over their open sessions."""

    def __init__(
        self,
        make_spec: Callable[[int, Mapping[str, Any]], ProcessSpec],
        *,
        size: int,
        engine: InferenceEngine,
        base_url: str,
        admin_key: str,
        log_dir: Path,
        forget: Callable[[int], None],
        say: Callable[[str], None],
    ) -> None:
        """`make_spec` makes the process with a number, given the state of the engine (`InferenceEngine.open_entrance`).

        `forget` gets the number of a process that is gone, before another process takes its place.
        """
        self.base_url = base_url
        self.admin_key = admin_key
        self.num_lost = 0
        """Processes that died."""
        self._make_spec = make_spec
        self._size = size
        self._engine = engine
        self._engine_calls = LoopAnswering(_Engine(engine))
        self._log_dir = log_dir
        self._forget = forget
        self._say = say
        self._gateways: dict[int, GatewayProcess] = {}
        self._observer: RemoteObserver | None = None
        self._background = BackgroundTasks()
        self._engine_state: Broadcast[GatewayProcess, Mapping[str, Any]] = Broadcast(
            "news of the engine", {}, send=_tell_state, background=self._background, say=say
        )
        self._version = Broadcast(
            "the engine's version",
            engine.version,
            send=_tell_version,
            background=self._background,
            say=logger.info,  # who has not confirmed it has not confirmed the engine's state either, and that is said
        )

        self._is_over = Broadcast(
            "that learning has ended", False, send=_tell_over, background=self._background, say=say
        )

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {g.child.name: g.child.pid for g in self._gateways.values()}

    def __iter__(self) -> Iterator[GatewaySession]:
        return iter([live for g in self._gateways.values() for live in g.sessions.values()])

    def observe(self, observer: RemoteObserver | None) -> None:
        """Tell `observer` of every session from now on, and of those that are open already."""
        self._observer = observer
        for live in self:
            if observer is not None:
                observer.opened(live)

    def end_learning(self) -> None:
        """Tell every process to refuse rewards from now on. The observer is still told of every session."""
        self._background.begin(
            self._is_over.send(list(self._gateways.values()), True), name="tell the end"
        )

    async def start(self, state: Mapping[str, Any]) -> None:
        """Start every process; the first failure ends the others."""
        self._engine_state.latest = state
        numbers = range(self._size)
        starting = [asyncio.create_task(self._start(p), name=f"start gateway-{p}") for p in numbers]
        try:
            with raised_here(ConfigError):
                await asyncio.gather(*starting)
        except BaseException:
            for task in starting:
                task.cancel()
            await asyncio.gather(*starting, return_exceptions=True)
            raise

    async def watch(self) -> None:
        """Replace processes that die, until cancelled. Raises if one has died too often."""
        async with asyncio.TaskGroup() as group:
            for number in range(self._size):
                group.create_task(self._keep(number), name=f"keep gateway-{number}")
            group.create_task(self._tell_versions(), name="tell versions")

    async def tell(self, state: Mapping[str, Any]) -> None:
        """Tell every process the new state of the engine, and wait for the processes that answer in time.

        A process that does not answer is told again, until it confirms this state or a newer one.
        """
        await self._engine_state.send(self._gateways.values(), state)

    async def aclose(self) -> None:
        """End every process after it has reported its sessions. Idempotent."""
        gateways, self._gateways = self._gateways, {}
        ending = (
            g.calls.call(GatewayCalls.end, timeout_s=END_WITHIN_S)
            for g in gateways.values()
            if not g.ended.done()
        )
        for error in await asyncio.gather(*ending, return_exceptions=True):
            if isinstance(error, ProcessError):
                logger.warning("a gateway process did not end well: %s", error)
        if gateways:  # their last reports are read then
            await asyncio.wait([g.ended for g in gateways.values()], timeout=END_WITHIN_S)
        await self._background.cancel()
        await asyncio.gather(*(g.aclose() for g in gateways.values()))
        self._observer = None

    async def _start(self, number: int) -> None:
        state, version = self._engine_state.number, self._version.number
        spec = self._make_spec(number, self._engine_state.latest)
        child = await spawn(spec, log_dir=self._log_dir)
        child.on_call = self._engine_calls.answer
        gateway = self._gateways[number] = GatewayProcess(child, self._take)
        await self._engine_state.catch_up(gateway, state)
        await self._version.catch_up(gateway, version)
        await self._is_over.catch_up(gateway, 0)

    async def _keep(self, number: int) -> None:
        restarts = Restarts()
        while True:
            gateway = self._gateways[number]
            why = await asyncio.shield(gateway.ended)
            self.num_lost += 1
            self._lose_sessions(gateway, why)
            await gateway.aclose()
            self._engine_state.forget(gateway)
            self._version.forget(gateway)
            self._is_over.forget(gateway)
            self._forget(number)
            pause_s = restarts.pause_after(why, log_path=gateway.child.log_path)
            self._say(f"warning: {why}: its sessions are lost, another process takes its place")
            await asyncio.sleep(pause_s)
            await started_again(
                partial(self._start, number),
                restarts=restarts,
                what=f"gateway-{number}",
                say=lambda why: self._say(f"warning: {why}"),
            )

    def _lose_sessions(self, gateway: GatewayProcess, why: str) -> None:
        lost, gateway.sessions = gateway.sessions, {}
        for live in lost.values():
            live.lost = f"its gateway process died: {why}"
            if self._observer is not None:
                self._observer.finished(live)

    async def _tell_versions(self) -> None:
        while True:
            if (version := self._engine.version) != self._version.latest:
                await self._version.send(self._gateways.values(), version)
            await asyncio.sleep(WATCH_VERSION_S)

    def _take(self, gateway: GatewayProcess, event: Opened | Finished) -> None:
        match event:
            case Opened():
                live = gateway.sessions[event.number] = GatewaySession(
                    event.id,
                    event.caller,
                    event.split,
                    event.group,
                    event.group_size,
                    event.sibling,
                )
                if self._observer is not None:
                    self._observer.opened(live)
            case Finished():
                live = gateway.sessions.pop(event.number)
                live.packed, live.version = event.packed, event.version
                if self._observer is not None:
                    self._observer.finished(live)


async def _tell_state(gateway: GatewayProcess, state: Mapping[str, Any]) -> None:
    await gateway.calls.call(GatewayCalls.engine_state, state, timeout_s=SILENT_S)


async def _tell_version(gateway: GatewayProcess, version: int) -> None:
    await gateway.calls.call(GatewayCalls.version, version, timeout_s=SILENT_S)


async def _tell_over(gateway: GatewayProcess, _: bool) -> None:
    await gateway.calls.call(GatewayCalls.over, timeout_s=SILENT_S)


@asynccontextmanager
async def kept_running(pool: GatewayPool, state: Mapping[str, Any]) -> AsyncIterator[GatewayPool]:
    """The pool, started and watched while the block runs. If a process dies too often, the block ends with an error."""
    try:
        await pool.start(state)
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(pool.watch(), name="gateway keeper")
            try:
                yield pool
            finally:
                watch.cancel()
    finally:
        await pool.aclose()
