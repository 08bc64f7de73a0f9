"""sglang-router in front of `/generate`: it places requests, we decide on which servers.

Weights, pauses and checks go to each server directly: on the router they are 404, and it cannot know
which server holds which weights. So exactly the ready servers are registered with it, by us; while
that is not so, requests wait.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection

from areal_sdk.backends.remote.pool import Member, Pool
from areal_sdk.backends.sglang.client import SGLangClient
from areal_sdk.errors import EngineError

logger = logging.getLogger(__name__)

_CHECK_EVERY_S = 5.0
"""Somebody else may register a server, or the router may have been started again."""
_REGISTERED_CHECK_S = 0.05


class Router(Member):
    """What requests are sent to in place of one of the servers."""

    def __init__(self, client: SGLangClient) -> None:
        super().__init__(client)
        self.gate.clear()

    async def adopt(self, pool: Pool) -> None:
        """Register the servers of an engine that starts; the router must have no others."""
        ours = {member.address for member in pool.members}
        if strangers := (await self.client.workers()).keys() - ours:
            raise EngineError(
                f"the router {self.address} also serves {', '.join(sorted(strangers))}, which this "
                "run would not update: give each run a router of its own"
            )
        if len({m.info.is_incremental for m in pool.members if m.info is not None}) > 1:
            raise EngineError(
                "behind a router either all servers stream incrementally or none: start all with "
                "--incremental-streaming-output"
            )
        self.info = pool.members[0].info
        await self._register({member.address for member in pool.ready})
        self.gate.set()

    async def keep(self, pool: Pool) -> None:
        """Run until cancelled: only ready servers are behind the router, or nothing is sent there."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_EVERY_S):
                    await self.wake.wait()
            self.wake.clear()
            try:
                await self._register({member.address for member in pool.ready})
            except EngineError as exc:
                if self.gate.is_set():
                    logger.warning("requests wait for the router: %s", exc)
                self.gate.clear()
                self.reason = str(exc)
            else:
                if pool.ready and not self.wake.is_set():
                    self.gate.set()

    async def leave(self) -> None:
        """Take our servers back; a router that is gone has none of them."""
        with contextlib.suppress(EngineError):
            await self._register(())

    async def _register(self, wanted: Collection[str]) -> None:
        """Exactly the `wanted` addresses, confirmed."""
        deadline_s = self.client.deadlines.control_s
        ends_at = time.monotonic() + deadline_s
        registered = await self.client.workers()
        for address in set(wanted) - registered.keys():
            await self.client.add_worker(address)
        for address in registered.keys() - set(wanted):
            await self.client.remove_worker(registered[address])
        while (await self.client.workers()).keys() != set(wanted):
            if time.monotonic() > ends_at:
                raise EngineError(f"{self.address} did not register servers in {deadline_s:g} s")
            await asyncio.sleep(_REGISTERED_CHECK_S)
