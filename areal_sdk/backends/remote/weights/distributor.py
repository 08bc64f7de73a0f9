"""Brings published versions to the servers: to all at once when published, and one by one to late servers."""

import asyncio
import logging
import os
from collections.abc import Coroutine, Sequence
from dataclasses import replace

from areal_sdk.backends.remote.client import InterruptMode
from areal_sdk.backends.remote.server_pool import Pool, Server, State
from areal_sdk.backends.remote.weights.sender import WeightSender
from areal_sdk.backends.remote.weights.swap import SwapTimes, discard_requests, relabel, swap
from areal_sdk.backends.remote.weights.transport import DiskTransport, Transport
from areal_sdk.backends.remote.weights.verify import Verifier
from areal_sdk.errors import EngineError, StaleWeightsError
from areal_sdk.types import WeightUpdate

logger = logging.getLogger(__name__)


def label_of(run: str, version: int) -> str:
    """The label of a version in the run whose token is `run`."""
    return f"{run}:{version}"


def version_of(run: str, label: str) -> int:
    """The version of a label; StaleWeightsError unless the run gave it."""
    theirs, separator, version = label.partition(":")
    if theirs != run or not separator:
        raise StaleWeightsError(
            f"a server samples from weights {label!r}, which this run did not publish: it was "
            "restarted, or is used by another run"
        )
    return int(version)


class WeightDistributor:
    """Owns the current version. A server is ready only while it serves the current version.

    Labels carry a token of this run, so that weights left behind by another run, or a server that
    was restarted behind our back, are never taken for ours.
    """

    def __init__(
        self,
        pool: Pool,
        sender: WeightSender,
        *,
        version: int,
        transport: Transport,
        disk: DiskTransport,
        verifier: Verifier,
        mode: InterruptMode,
        drain_timeout_s: float,
        no_server_timeout_s: float,
    ) -> None:
        self.version = version
        self.weights: WeightUpdate | None = None
        """The last update that brought weights; None: servers hold the checkpoint they loaded."""
        self.last_swaps: dict[str, SwapTimes] = {}
        self._pool = pool
        self._sender = sender
        self._transport = transport
        self._disk = disk
        self._verifier = verifier
        self._mode: InterruptMode = mode
        self._drain_timeout_s = drain_timeout_s
        self._no_server_timeout_s = no_server_timeout_s
        self.run = os.urandom(4).hex()
        """Random text in all labels of this run."""
        self._lock = asyncio.Lock()

    def label(self, version: int) -> str:
        return label_of(self.run, version)

    def version_of(self, label: str) -> int:
        return version_of(self.run, label)

    @property
    def sender_pid(self) -> int | None:
        return self._sender.pid

    async def publish(self, update: WeightUpdate) -> None:
        """Serve `update` from every server that can. Raises if none does. A server that is down but will be back has
        until the deadline of requests to serve it."""
        async with self._lock:
            servers = [m for m in self._pool.servers if m.state in (State.READY, State.DRAINING)]
            if update.path is None:
                errors = await self._relabel(servers, update)
            else:
                await self._prepare(servers, update, self._transport)
                self.weights = update
                errors = await self._push(servers, update, self._transport)
            self.version = update.version
            for server, error in zip(servers, errors, strict=True):
                if error is not None:
                    logger.warning("weights %d: %s", update.version, error)
                    await self._set_behind(server, str(error))
            if not self._pool.ready:
                await self._recover()
        for server in self._pool.servers:
            if server.state in (State.BEHIND, State.DOWN):
                server.wake.set()
        if not self._pool.ready:
            await self._pool.wait_ready(timeout_s=self._no_server_timeout_s)

    async def catch_up(self, server: Server) -> None:
        """Bring one server to the current version over files, and make it ready."""
        async with self._lock:
            await self._catch_up(server)

    async def adopt(self, server: Server) -> None:
        """Take in a server at the start of the run. The server was started with the weights of the current version."""
        await server.client.set_label(self.label(self.version))
        server.version = self.version
        await self._pool.set_state(server, State.READY)

    async def forget(self, server: Server) -> None:
        """Forget a server that is gone, and what the transport shared with it."""
        await self._transport.forget(server)

    # inside; the lock is held

    async def _recover(self) -> None:
        """Try each server once more, over files, after no server took the version. If none does, raise."""
        for server in self._pool.servers:
            if server.state in (State.READY, State.BEHIND):
                try:
                    await self._catch_up(server)
                except EngineError as exc:
                    await self._set_behind(server, str(exc))
                    if not await _answers(server):  # it may come back: the supervisor sees to it
                        await self._pool.set_state(server, State.DOWN, str(exc))
        down = (State.DOWN, State.SUSPECT)
        if not self._pool.ready and not any(m.state in down for m in self._pool.servers):
            raise EngineError(f"no server serves version {self.version}: {self._pool.describe()}")

    async def _catch_up(self, server: Server) -> None:
        served = await server.client.weight_label()
        if served == self.label(self.version) and not server.is_tainted:
            server.version = self.version
        elif self.weights is None:  # none were ever published: it has what it started with
            await server.client.set_label(self.label(self.version))
            server.version = self.version
        else:
            weights = replace(self.weights, version=self.version)
            await self._prepare([server], weights, self._disk)
            (error,) = await self._push([server], weights, self._disk)
            if error is not None:
                raise error
        await self._pool.set_state(server, State.READY)

    async def _relabel(
        self, servers: Sequence[Server], update: WeightUpdate
    ) -> list[EngineError | None]:
        async def one(server: Server) -> None:
            await relabel(
                server, version=update.version, label=self.label(update.version), mode=self._mode
            )

        return await _outcomes([one(server) for server in servers])

    async def _prepare(
        self, servers: Sequence[Server], update: WeightUpdate, transport: Transport
    ) -> None:
        """Do the work that comes before the pause. A sender that died meanwhile is started once more."""
        try:
            await self._prepare_once(servers, update, transport)
        except EngineError as exc:
            logger.warning("preparing weights %d again: %s", update.version, exc)
            await self._sender.discard()
            await self._prepare_once(servers, update, transport)

    async def _prepare_once(
        self, servers: Sequence[Server], update: WeightUpdate, transport: Transport
    ) -> None:
        await transport.prepare(update, servers)
        await self._verifier.prepare(update, servers)

    async def _push(
        self, servers: Sequence[Server], update: WeightUpdate, transport: Transport
    ) -> list[EngineError | None]:
        async def one(server: Server) -> None:
            self.last_swaps[server.address] = await swap(
                server,
                version=update.version,
                label=self.label(update.version),
                transport=transport,
                verifier=self._verifier,
                mode=self._mode,
                drain_timeout_s=self._drain_timeout_s,
            )

        return await _outcomes([one(server) for server in servers])

    async def _set_behind(self, server: Server, reason: str) -> None:
        server.version = -1
        await self._pool.set_state(server, State.BEHIND, reason)
        await self._transport.forget(server)
        await discard_requests(server)


async def _answers(server: Server) -> bool:
    try:
        await server.client.probe()
    except EngineError:
        return False
    return True


async def _outcomes(calls: Sequence[Coroutine[None, None, None]]) -> list[EngineError | None]:
    """Run all `calls` to their end. Engine errors are outcomes; any other error is a bug and is raised."""
    results = await asyncio.gather(*calls, return_exceptions=True)
    outcomes: list[EngineError | None] = []
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, EngineError):
            raise result
        outcomes.append(result if isinstance(result, EngineError) else None)
    return outcomes
