"""`RemoteEngine`: a pool of inference servers, their weights, their failures."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import aiohttp

from areal_sdk.backends.remote.client import ServerClient
from areal_sdk.backends.remote.connect import (
    check_agreement,
    common_context,
    connect,
    read_model_info,
)
from areal_sdk.backends.remote.http import HttpClient, open_session
from areal_sdk.backends.remote.lending import lend, take_back
from areal_sdk.backends.remote.options import RemoteSection, ServerLimits
from areal_sdk.backends.remote.router import Router
from areal_sdk.backends.remote.sampling import PoolSampler
from areal_sdk.backends.remote.server_pool import Pool, Server, State
from areal_sdk.backends.remote.sharing import Entrance
from areal_sdk.backends.remote.starting.processes import RunningServer, ServerStarter
from areal_sdk.backends.remote.supervisor import Supervisor, report_bug
from areal_sdk.backends.remote.weights.distributor import WeightDistributor
from areal_sdk.backends.remote.weights.sender import WeightSender
from areal_sdk.backends.remote.weights.swap import SwapTimes, interrupt
from areal_sdk.backends.remote.weights.transport import DiskTransport
from areal_sdk.backends.remote.weights.verify import Canary, CanaryScorer, Verifier
from areal_sdk.config import EngineSection
from areal_sdk.engine import (
    EngineEntrance,
    EngineInfo,
    GenerateChunk,
    GenerateRequest,
    InferenceEngine,
    Tell,
)
from areal_sdk.errors import ConfigError, EngineError
from areal_sdk.types import WeightUpdate

logger = logging.getLogger(__name__)

CLIENT = "areal_sdk.backends.remote.sharing:RemoteEngineClient"


class RemoteEngine(InferenceEngine):
    """Samples from servers of one kind: a subclass names their `client`.

    A request whose server fails continues on another one from its recorded tokens. Servers of a launcher are started
    by `start`, started again if they die, and stopped by `aclose`. Servers named by address are left as they are, and
    are expected to serve the checkpoint `model`.
    """

    client: ClassVar[type[HttpClient]]
    is_shareable = True

    def __init__(
        self,
        model: Path,
        addresses: Sequence[str] = (),
        *,
        log_dir: Path,
        launcher: ServerStarter | None = None,
        version: int = 0,
        scorer: CanaryScorer | None = None,
        engine: EngineSection | None = None,
        settings: RemoteSection | None = None,
        limits: ServerLimits | None = None,
        sender_env: Mapping[str, str] | None = None,
    ) -> None:
        """`sender_env`: variables of the process that sends weights."""
        if not addresses and launcher is None:
            raise EngineError(f"name at least one {self.client.kind} server, or give a launcher")
        self.settings = settings or RemoteSection()
        self.limits = limits or ServerLimits()
        engine = engine or EngineSection()
        self.settings.check(engine, kind=self.client.kind, capabilities=self.client.capabilities)
        self.interrupt_mode = self.settings.interrupt_mode(engine)
        self._model = model
        self._addresses = [*addresses]
        self._launcher = launcher
        self._first_version = version
        self._max_context = engine.max_context
        self._scorer = scorer
        self._log_dir = log_dir
        self._sender_env = sender_env or {}
        self._info: EngineInfo | None = None
        self._pool = Pool([])
        self._pool.on_change = self._changed
        self._distributor: WeightDistributor | None = None
        self._exit = AsyncExitStack()
        self._session: aiohttp.ClientSession
        self._supervisor: Supervisor
        self._watches: list[asyncio.Task[None]] = []
        self._checking: asyncio.Future[list[None]] | None = None
        self._sampler: PoolSampler
        self._entrance: Entrance | None = None
        """The entrance at which rollout nodes are told of the servers; None without nodes."""
        self._tell_outage: Callable[[bool], None] = lambda is_away: None
        self._is_away = False

    # life

    async def start(self) -> None:
        self._info = read_model_info(self._model, max_context=self._max_context)
        try:
            await self._start()
        except BaseException:
            await self.aclose()
            raise

    async def _start(self) -> None:
        if self.interrupt_mode == "in_place":
            logger.warning(
                "requests keep the KV of old weights over a swap: logprobs of the tokens they sample "
                "then are those of no version (num_stale_kv of a turn counts them)"
            )
        session = self._session = await self._exit.enter_async_context(open_session())
        started: list[tuple[str, RunningServer | None]] = [(a, None) for a in self._addresses]
        if self._launcher is not None:
            self._exit.callback(self._launcher.close)
            started += [(process.address, process) for process in await self._launcher.start_all()]
        self._pool.servers = [
            Server(self.make_client(address, session), process) for address, process in started
        ]
        try:
            async with asyncio.TaskGroup() as group:
                for server in self._pool.servers:
                    connecting = connect(
                        server,
                        self._model,
                        self.limits,
                        start_timeout_s=self.settings.start_timeout_s,
                    )
                    group.create_task(connecting)
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None  # one line for the user; the rest were cancelled
        self._distributor = self._make_distributor()
        self._info = replace(
            self.info,
            max_context=common_context(self.info, self._pool.servers),
            constrains_json=all(m.info is not None and m.info.has_grammar for m in self.servers),
            shares_device=self.settings.colocated,
            restart_s=self.settings.start_timeout_s if self._launcher is not None else 0.0,
        )
        await check_agreement(self._pool.servers, self.canary, self._model)
        for server in self._pool.servers:
            await self._distributor.adopt(server)
        if self.settings.router is not None:
            router = Router(self.make_client(self.settings.router, session))
            await router.adopt(self._pool)
            self._pool.entry = router
            self._exit.push_async_callback(router.leave)
            self._watches = [asyncio.create_task(router.keep(self._pool), name="keep the router")]
        self._sampler = PoolSampler(
            self._pool,
            self.info,
            self._model,
            mode=self.interrupt_mode,
            reserved_tokens=self.client.reserved_tokens,
            max_failovers=self.limits.max_failovers,
            wait_s=self.settings.request_wait_s,
            label=self._distributor.label,
            version_of=self._distributor.version_of,
            suspect=self._suspect,
        )
        supervisor = self._supervisor = Supervisor(
            self._pool,
            self._distributor,
            model=self._model,
            restart=self._restart if self._launcher is not None else None,
            start_timeout_s=self.settings.start_timeout_s,
            options=self.limits.supervision,
        )
        self._watches += [
            asyncio.create_task(supervisor.watch(server), name=f"watch {server.address}")
            for server in self._pool.servers
        ]
        for watch in self._watches:
            watch.add_done_callback(report_bug)

    def make_client(self, address: str, session: aiohttp.ClientSession) -> ServerClient:
        """A client of the server, or router, of `address`."""
        return self.client(
            address, session, deadlines=self.limits.deadlines, api_key=self.settings.api_key
        )

    def _make_distributor(self) -> WeightDistributor:
        first = self._pool.servers[0].info
        assert first is not None
        sender = WeightSender(
            model=self._model,
            dtype=first.dtype,
            log_dir=self._log_dir,
            timeout_s=self.limits.deadlines.weights_s,
            layout=self.client.layout,
            device="cpu" if self.settings.group_backend == "gloo" else "cuda",
            env=self._sender_env,
        )
        self._exit.push_async_callback(sender.aclose)
        disk = DiskTransport(self._model)
        self._exit.push_async_callback(disk.aclose)
        return WeightDistributor(
            self._pool,
            sender,
            version=self._first_version,
            transport=self.settings.transport_of(sender, disk),
            disk=disk,
            verifier=Verifier(sender, self.canary, scorer=self._scorer),
            mode=self.interrupt_mode,
            drain_timeout_s=self.limits.drain_timeout_s,
            no_server_timeout_s=self.settings.request_wait_s,
        )

    async def aclose(self) -> None:
        watches, self._watches = self._watches, []
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
        await asyncio.gather(
            *(server.process.stop() for server in self._pool.servers if server.process is not None)
        )
        await self._exit.aclose()

    # what it serves

    @property
    def info(self) -> EngineInfo:
        if self._info is None:
            raise EngineError("the engine is not started: await start() first")
        return self._info

    @property
    def version(self) -> int:
        return self._started().version

    @property
    def servers(self) -> Sequence[Server]:
        """The servers, for status displays."""
        return self._pool.servers

    @property
    def sender_pid(self) -> int | None:
        """Process id of the child that moves weights; None before the first update."""
        return self._started().sender_pid

    @property
    def last_swaps(self) -> dict[str, SwapTimes]:
        """Durations of the last swap of each server, by address."""
        return dict(self._started().last_swaps)

    @cached_property
    def canary(self) -> Canary:
        """The prompt that verifies every push."""
        return Canary.for_vocabulary(self.info.vocab_size)

    async def update_weights(self, update: WeightUpdate) -> None:
        await self._started().publish(update)
        if self._entrance is not None:
            self._entrance.tell_soon()

    def observe_outages(self, tell: Callable[[bool], None]) -> None:
        self._tell_outage = tell

    def _changed(self) -> None:
        """React to a change of a server's state."""
        if self._entrance is not None:
            self._entrance.tell_soon()
        if self._pool.is_starting != self._is_away:
            self._is_away = not self._is_away
            self._tell_outage(self._is_away)

    async def drain(self, address: str, *, timeout_s: float) -> None:
        """Send nothing new to a server and wait until it is idle."""
        (server,) = [m for m in self._pool.servers if m.address == address]
        await self._pool.set_state(server, State.DRAINING, "asked to drain")
        async with asyncio.timeout(timeout_s):
            await server.idle.wait()

    async def pause(self) -> None:
        """Have requests wait here and not in a server, so that no deadline passes meanwhile."""
        self._pool.running.clear()
        if self._entrance is not None:
            await self._entrance.tell()
        ready, router = self._pool.ready, self._pool.entry
        if router is not None:
            await interrupt(router, ready)
        await asyncio.gather(*(interrupt(server) for server in ready))

    async def resume(self) -> None:
        self._pool.running.set()
        if self._entrance is not None:
            await self._entrance.tell()

    async def open_entrance(self, tell: Tell, *, host: str) -> EngineEntrance:
        """Let nodes send requests to the servers directly. They are told of the servers' state."""
        if self.interrupt_mode != "retract" or self.settings.router or self.settings.colocated:
            raise ConfigError(
                "rollout.nodes and serve.processes need servers that hold requests while they take new weights, "
                'and that are reached directly: interrupt = "retract", and neither router, colocated nor '
                'kv_on_update = "keep"'
            )
        self._entrance = Entrance(
            self._pool,
            tell,
            client=self.client,
            run=self._started().run,
            model=self._model,
            settings=self.settings,
            limits=self.limits,
        )
        self._exit.push_async_callback(self._entrance.aclose)
        return EngineEntrance(CLIENT, self._entrance.state())

    async def release_memory(self) -> None:
        """Have every server lend its memory; see `lending`."""
        await self.pause()
        patience_s = self.settings.start_timeout_s
        label = self._started().label
        lending = (
            lend(server, label=label(server.version), patience_s=patience_s)
            for server in self._pool.servers
        )
        for error in await asyncio.gather(*lending, return_exceptions=True):
            if error is not None:
                await self.resume_memory()
                await self.resume()
                raise error

    async def resume_memory(self) -> None:
        """Have servers take their memory back, with the weights they had. Requests wait until `resume`."""
        await asyncio.gather(*(take_back(self._pool, server) for server in self._pool.servers))

    # generation

    def stream(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        return self._sampler.stream(request)

    @property
    def num_failovers(self) -> int:
        """Number of attempts that a fault or a swap of weights ended, so that the request went on with another attempt."""
        return self._sampler.num_failovers

    def _decode(self, tokens: list[int]) -> str:
        return self._sampler.decode(tokens)

    async def _suspect(self, server: Server, error: EngineError) -> None:
        if server is self._pool.entry:
            await self._check_all(error)
            return
        if server.state is State.READY:  # the first of many that meet the same fault
            logger.warning("requests on %s continue elsewhere: %s", server.address, error)
            await self._pool.set_state(server, State.SUSPECT, str(error))
        server.wake.set()

    async def _restart(self, server: Server) -> None:
        """Start a server of the launcher again, at the same address or another one."""
        assert self._launcher is not None
        assert server.process is not None
        server.process = await self._launcher.restart(server.process)
        if server.process.address != server.address:
            server.client = self.make_client(server.process.address, self._session)

    async def _check_all(self, error: EngineError) -> None:
        """Look at every server before the next request, since a router does not say which one failed."""
        assert self._pool.entry is not None
        if self._checking is None or self._checking.done():
            self._pool.entry.gate.clear()  # or was it the router's own?
            self._pool.entry.wake.set()
            logger.warning("requests continue elsewhere: %s", error)
            self._checking = asyncio.gather(*(self._supervisor.check(m) for m in self.servers))
        with suppress(TimeoutError):
            async with asyncio.timeout(self.settings.request_wait_s):
                await asyncio.shield(self._checking)

    def _started(self) -> WeightDistributor:
        if self._distributor is None:
            raise EngineError("the engine is not started: await start() first")
        return self._distributor
