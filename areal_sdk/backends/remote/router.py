"""A router in front of the servers: it places requests, the engine decides on which servers.

Weights, pauses and checks go to each server directly: a router does not pass them on, and cannot know which server
holds which weights. So the engine registers exactly the ready servers; while others are registered, requests wait.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection

from areal_sdk.backends.remote.client import ServerClient
from areal_sdk.backends.remote.server_pool import Pool, Server
from areal_sdk.errors import EngineError

logger = logging.getLogger(__name__)

_CHECK_EVERY_S = 5.0
"""Seconds between two checks: somebody else may register a server, or the router may have been started again."""
_REGISTERED_CHECK_S = 0.05
"""Seconds between two looks at the registered servers, since the router does not tell when it has registered one."""


class Router(Server):
    """The router, to which requests go in place of one of the servers."""

    def __init__(self, client: ServerClient) -> None:
        super().__init__(client)
        self.gate.clear()

    async def adopt(self, pool: Pool) -> None:
        """Register the servers of an engine that starts; the router must have no others."""
        ours = {server.address for server in pool.servers}
        if strangers := (await self.client.workers()).keys() - ours:
            raise EngineError(
                f"the router {self.address} also serves {', '.join(sorted(strangers))}, which this "
                "run would not update: give each run a router of its own"
            )
        self.client.speak_for([server.client for server in pool.servers])
        self.info = pool.servers[0].info
        await self._register({server.address for server in pool.ready})
        self.gate.set()

    async def keep(self, pool: Pool) -> None:
        """Keep only ready servers behind the router, until cancelled. While the router has others, it gets no requests."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_EVERY_S):
                    await self.wake.wait()
            self.wake.clear()
            try:
                await self._register({server.address for server in pool.ready})
            except EngineError as exc:
                if self.gate.is_set():
                    logger.warning("requests wait for the router: %s", exc)
                self.gate.clear()
                self.reason = str(exc)
            else:
                if pool.ready and not self.wake.is_set():
                    self.gate.set()

    async def leave(self) -> None:
        """Remove the engine's servers from the router, if the router still answers."""
        with contextlib.suppress(EngineError):
            await self._register(())

    async def _register(self, wanted: Collection[str]) -> None:
        """Register exactly the `wanted` addresses, and confirm it."""
        deadline_s = self.client.deadlines.control_s
        ends_at = time.monotonic() + deadline_s
        registered = await self.client.workers()
        for address in set(wanted) - registered.keys():
            await self.client.add_worker(address)
        for address in registered.keys() - set(wanted):
            await self.client.remove_worker(registered[address])
        while (await self.client.workers()).keys() != set(wanted):
            if time.monotonic() > ends_at:
                raise EngineError(
                    f"the router {self.address} did not register the servers within {deadline_s:g} s: "
                    "see its log"
                )
            await asyncio.sleep(_REGISTERED_CHECK_S)
