"""Rollout nodes on a pool of servers: nodes send requests themselves, and the main process does everything else.

The main process alone supervises servers and changes weights. A node mirrors the pool: which servers
there are, which of them are ready, and whether the engine is paused. Versions of tokens come from the
labels in the servers' answers, so that a node that hears late of a version mislabels nothing.
"""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from areal_sdk.backends.remote.client import Deadlines
from areal_sdk.backends.remote.http import HttpClient, open_session
from areal_sdk.backends.remote.options import RemoteSection, ServerLimits
from areal_sdk.backends.remote.sampling import PoolSampler
from areal_sdk.backends.remote.server_pool import Pool, Server, State
from areal_sdk.backends.remote.supervisor import report_bug
from areal_sdk.backends.remote.weights.distributor import label_of, version_of
from areal_sdk.backends.remote.weights.swap import interrupt
from areal_sdk.engine import EngineClient, EngineInfo, GenerateChunk, GenerateRequest, Tell
from areal_sdk.errors import EngineError
from areal_sdk.process.threads import BackgroundTasks
from areal_sdk.process.user_code import load_user_object, reference_to

logger = logging.getLogger(__name__)

PROBE_EVERY_S = 1.0
"""Seconds between two probes of a server at which a request met a fault, until it answers."""


class Entrance:
    """The entrance for nodes, in the main process: tells the nodes the state of the pool."""

    def __init__(
        self,
        pool: Pool,
        tell: Tell,
        *,
        client: type[HttpClient],
        run: str,
        model: Path,
        settings: RemoteSection,
        limits: ServerLimits,
    ) -> None:
        self._pool = pool
        self._tell = tell
        self._constant = {
            "client": reference_to(client),
            "run": run,
            "model": str(model),
            "api_key": settings.api_key,
            "wait_s": settings.request_wait_s,
            "max_failovers": limits.max_failovers,
            "deadlines": asdict(limits.deadlines),
        }
        self._telling: asyncio.Task[None] | None = None
        self._is_due = False

    def state(self) -> dict[str, Any]:
        """The state of the pool that nodes know, as JSON."""
        servers = [
            {
                "address": server.address,
                "state": server.state.value,
                "reason": server.reason,
                "version": server.version,
                "expected_within_s": max(0.0, server.expected_by - time.monotonic()),
            }
            for server in self._pool.servers
        ]
        return {**self._constant, "servers": servers, "is_running": self._pool.running.is_set()}

    async def tell(self) -> None:
        await self._tell(self.state())

    def tell_soon(self) -> None:
        """Tell the nodes the state soon, without waiting for them. A node that learns it late meets faults, and
        continues elsewhere."""
        self._is_due = True
        if self._telling is None or self._telling.done():
            self._telling = asyncio.create_task(self._tell_all(), name="news of the servers")

    async def aclose(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.wait({self._telling})

    async def _tell_all(self) -> None:
        while self._is_due:
            self._is_due = False
            await self.tell()


class RemoteEngineClient(EngineClient):
    """Samples from the servers of the main process's engine. It applies the states that it is told in their order, and
    waits for no server meanwhile. A task of its own probes a server that is new, or at which a request met a fault:
    the server is used once it answers."""

    def __init__(self, info: EngineInfo, *, name: str) -> None:
        super().__init__(info, name=name)
        self._pool = Pool([])
        self._session = open_session()
        self._sampler: PoolSampler | None = None
        self._following = asyncio.Lock()
        """A lock that is held while states of servers change, and never during a call to a server."""
        self._probes: dict[Server, asyncio.Task[None]] = {}
        self._interrupts = BackgroundTasks()
        self._told: dict[str, State] = {}
        """The state of each server, as the main process sees it."""
        self._version = 0

    @property
    def version(self) -> int:
        return self._version

    async def told(self, state: Mapping[str, Any]) -> None:
        """Apply the state that the main process tells. If the engine is paused, return once no request of ours is in
        flight on any server that answers."""
        if self._sampler is None:
            self._sampler = self._make_sampler(state)
        if state["is_running"]:
            self._pool.running.set()
            for task in self._interrupts:
                task.cancel()
        else:
            self._pool.running.clear()
        async with self._following:
            await self._follow(state)
        if not self._pool.running.is_set():
            for server in self._pool.servers:
                self._interrupts.begin(self._interrupt(server), name=f"interrupt {server.address}")
            await self._interrupts.finish()

    async def _follow(self, state: Mapping[str, Any]) -> None:
        known = {server.address: server for server in self._pool.servers}
        for told in state["servers"]:
            address, seen = told["address"], State(told["state"])
            self._told[address] = seen
            self._version = max(self._version, told["version"])
            server = known.pop(address, None) or self._add(address, state)
            server.version = told["version"]
            server.expected_by = time.monotonic() + told["expected_within_s"]
            if server not in self._probes or seen is State.DOWN:
                await self._pool.set_state(server, seen, told["reason"])
        for gone in known.values():
            await self._forget(gone)

    def stream(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        assert self._sampler is not None, "the first news come before the first request"
        return self._sampler.stream(request)

    async def aclose(self) -> None:
        probes = list(self._probes.values())
        for probe in probes:
            probe.cancel()
        await asyncio.gather(*probes, return_exceptions=True)
        await self._interrupts.cancel()
        await self._session.close()

    def _make_sampler(self, state: Mapping[str, Any]) -> PoolSampler:
        client: type[HttpClient] = load_user_object(state["client"])
        return PoolSampler(
            self._pool,
            self.info,
            Path(state["model"]),
            mode="retract",
            reserved_tokens=client.reserved_tokens,
            max_failovers=state["max_failovers"],
            wait_s=state["wait_s"],
            label=partial(label_of, state["run"]),
            version_of=partial(version_of, state["run"]),
            suspect=self._suspect,
            name=f"{self.name}.{os.getpid()}.",
        )

    def _add(self, address: str, state: Mapping[str, Any]) -> Server:
        make: type[HttpClient] = load_user_object(state["client"])
        deadlines = Deadlines(**state["deadlines"])
        client = make(address, self._session, deadlines=deadlines, api_key=state["api_key"])
        server = Server(client)
        self._pool.servers.append(server)
        self._begin_probe(server, model=Path(state["model"]))
        return server

    async def _forget(self, server: Server) -> None:
        """Forget a server that the engine no longer has. Its requests continue elsewhere."""
        self._pool.servers.remove(server)
        del self._told[server.address]
        if (probe := self._probes.pop(server, None)) is not None:
            probe.cancel()
        await self._pool.set_state(server, State.DOWN, "the engine has it no more")

    async def _interrupt(self, server: Server) -> None:
        """End our requests on a server. They go on after the pause. If the server does not answer, abandon them."""
        try:
            await interrupt(server)
        except EngineError as exc:
            await self._suspect(server, exc)
            server.client.abandon()

    async def _suspect(self, server: Server, error: EngineError) -> None:
        """Send nothing to the server until it answers. The main process repairs it without being told."""
        async with self._following:
            if server in self._probes or server not in self._pool.servers:
                return
            logger.warning("requests on %s continue elsewhere: %s", server.address, error)
            await self._pool.set_state(server, State.SUSPECT, str(error))
            self._begin_probe(server)

    def _begin_probe(self, server: Server, *, model: Path | None = None) -> None:
        probe = asyncio.create_task(self._probe(server, model), name=f"probe {server.address}")
        probe.add_done_callback(report_bug)
        self._probes[server] = probe

    async def _probe(self, server: Server, model: Path | None) -> None:
        """Probe a server until it answers, and use it from then on. With a `model`, the probe asks for properties too."""
        refused = ""
        while True:
            try:
                if model is not None:
                    server.info = await server.client.inspect(model)
                else:
                    await server.client.probe()
            # What a plugin's client raises, too: else its server would never be used again.
            except Exception as exc:
                if refused != (refused := str(exc)):
                    logger.warning(
                        "%s is not used until it answers: %s",
                        server.address,
                        exc,
                        exc_info=None if isinstance(exc, EngineError) else exc,
                    )
                await asyncio.sleep(PROBE_EVERY_S)
            else:
                break
        async with self._following:
            del self._probes[server]
            state = self._told[server.address]
            await self._pool.set_state(server, state, "" if state is State.READY else "as told")
