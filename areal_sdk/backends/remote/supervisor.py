"""One watch per server: is it alive, does it serve the current version, must it be restarted?"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from areal_sdk.backends.remote.client import wait_until_ready
from areal_sdk.backends.remote.lending import reclaim
from areal_sdk.backends.remote.server_pool import Pool, Server, State
from areal_sdk.backends.remote.weights.distributor import WeightDistributor
from areal_sdk.errors import ChildDiedError, EngineError
from areal_sdk.process.pools.supervision import RestartPolicy, Restarts

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SupervisionOptions:
    check_every_s: float = 5.0
    """Seconds without a token after which a server is asked for one."""
    restart_hung_after_s: float = 60.0
    """Seconds after which a server that hangs is killed and started again, if this engine started it."""
    max_restarts: int = 5
    """Maximum number of restarts of a server that does not get ready in between. After them it stays down."""

    @property
    def restarts(self) -> RestartPolicy:
        return RestartPolicy(self.max_restarts, window_s=math.inf, first_pause_s=0.0)


class Supervisor:
    """Keeps the state of each server true. Its tasks are owned by the engine."""

    def __init__(
        self,
        pool: Pool,
        distributor: WeightDistributor,
        *,
        model: Path,
        restart: Callable[[Server], Awaitable[None]] | None,
        start_timeout_s: float,
        options: SupervisionOptions,
    ) -> None:
        self._pool = pool
        self._distributor = distributor
        self._model = model
        self._restart = restart
        self._start_timeout_s = start_timeout_s
        self._options = options
        self._down_since: dict[Server, float] = {}
        self._restarts: dict[Server, Restarts] = {}
        self._left_down: set[Server] = set()

    async def watch(self, server: Server) -> None:
        """Check a server again and again, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.check_every_s):
                    await server.wake.wait()
            server.wake.clear()
            await self.check(server)

    async def check(self, server: Server) -> None:
        """Check a server once, now."""
        async with server.care:
            try:
                await self._look(server)
            except EngineError as exc:
                await self._set_down(server, str(exc))

    async def _look(self, server: Server) -> None:
        if server in self._left_down:
            return
        if server.process is not None and not server.process.is_running:
            await self._revive(server, "its process died")
        elif server.state is State.DOWN:
            if self._is_hung(server):
                await self._revive(server, "it hung")
            else:
                await self._readmit(server)
        elif server.state is State.BEHIND:
            await self._distributor.catch_up(server)
            logger.info("%s serves version %d again", server.address, server.version)
        elif server.state is State.SUSPECT or self._is_quiet(server):
            if server.swap_lock.locked():
                return  # it is held on purpose, and its swap has deadlines of its own
            is_busy = server.num_running > 0 or self._pool.entry is not None
            await server.client.probe(is_busy=is_busy)
            if server.state is State.SUSPECT:
                await self._readmit(server)

    async def _readmit(self, server: Server) -> None:
        """Take back a server that answers again, unchanged or after a restart by somebody else."""
        await reclaim(server)
        await server.client.resume()  # it may have been left paused
        server.info = await server.client.inspect(self._model)
        self._down_since.pop(server, None)
        await self._pool.set_state(server, State.BEHIND, "it must show its version first")
        await self._distributor.catch_up(server)
        self._restarts.pop(server, None)

    async def _revive(self, server: Server, why: str) -> None:
        self._expect(server, within_s=self._start_timeout_s)
        await self._set_down(server, why)
        try:
            await self._start_again(server, why)
        except EngineError:  # it is looked at again soon
            self._expect(server, within_s=2 * self._options.check_every_s)
            raise
        server.expected_by = 0.0

    async def _start_again(self, server: Server, why: str) -> None:
        assert server.process is not None
        assert self._restart is not None, "a process that this engine started has a launcher"
        await server.process.stop(grace_s=0.0)
        restarts = self._restarts.setdefault(server, Restarts(self._options.restarts))
        try:
            await asyncio.sleep(restarts.pause_after(why, log_path=server.process.log_path))
        except ChildDiedError:
            await self._leave_down(server, why)
            return
        logger.warning(
            "restarting the %s server of %s: %s; if no other is ready, requests wait up to %g s "
            "(start_timeout_s); log: %s",
            server.client.kind,
            server.address,
            why,
            self._start_timeout_s,
            server.process.log_path,
        )
        await self._restart(server)
        self._expect(server, within_s=self._start_timeout_s)  # a launcher may have sought its place
        await wait_until_ready(
            server.client,
            timeout_s=self._start_timeout_s,
            is_running=lambda: server.process is not None and server.process.is_running,
        )
        self._expect(server, within_s=self._start_timeout_s)  # it loads the newest weights
        await self._readmit(server)

    def _expect(self, server: Server, *, within_s: float) -> None:
        server.expected_by = time.monotonic() + within_s

    async def _leave_down(self, server: Server, why: str) -> None:
        """Stop restarting a server whose starts keep failing; the other servers go on."""
        assert server.process is not None
        self._left_down.add(server)
        server.expected_by = 0.0
        reason = (
            f"{why}; it is left down after {self._options.max_restarts} starts that failed, see "
            f"{server.process.log_path}"
        )
        logger.error("the %s server of %s: %s", server.client.kind, server.address, reason)
        await self._pool.set_state(server, State.DOWN, reason)

    async def _set_down(self, server: Server, reason: str) -> None:
        if server.state is not State.DOWN:
            logger.warning(
                "the %s server of %s is down: %s", server.client.kind, server.address, reason
            )
        self._down_since.setdefault(server, time.monotonic())
        await self._pool.set_state(server, State.DOWN, reason)
        await self._distributor.forget(server)

    def _is_quiet(self, server: Server) -> bool:
        return time.monotonic() - server.last_token_at > self._options.check_every_s

    def _is_hung(self, server: Server) -> bool:
        since = self._down_since.get(server)
        return (
            server.process is not None
            and since is not None
            and time.monotonic() - since > self._options.restart_hung_after_s
        )


def report_bug(watch: asyncio.Task[None]) -> None:
    """Log the error of a watch that ended without being cancelled: it must not stay unseen until the run is over."""
    if not watch.cancelled() and (bug := watch.exception()) is not None:
        logger.error("%s ended: its server is not looked after", watch.get_name(), exc_info=bug)
