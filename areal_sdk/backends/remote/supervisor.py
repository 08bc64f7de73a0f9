"""One watch per server: is it alive, does it serve the current version, must it be restarted?"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from areal_sdk.backends.remote.lending import reclaim
from areal_sdk.backends.remote.pool import Member, Pool, State
from areal_sdk.backends.remote.weights import Publisher
from areal_sdk.backends.sglang.client import wait_until_ready
from areal_sdk.backends.sglang.probe import probe_server
from areal_sdk.backends.sglang.servers import ServerProcess
from areal_sdk.errors import EngineError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SupervisionOptions:
    check_every_s: float = 5.0
    """A server from which no token came for so long is asked for one."""
    restart_hung_after_s: float = 60.0
    """A server of ours that hangs for so long is killed and started again."""
    max_restarts: int = 5
    """Of one server without its getting ready; then it is left down."""
    start_timeout_s: float = 600.0


class Supervisor:
    """Keeps the state of each member true. Its tasks are owned by the engine."""

    def __init__(
        self,
        pool: Pool,
        publisher: Publisher,
        *,
        model: Path,
        restart: Callable[[ServerProcess], ServerProcess] | None,
        options: SupervisionOptions,
    ) -> None:
        self._pool = pool
        self._publisher = publisher
        self._model = model
        self._restart = restart
        self._options = options
        self._down_since: dict[Member, float] = {}
        self._num_restarts: dict[Member, int] = {}
        self._left_down: set[Member] = set()

    async def watch(self, member: Member) -> None:
        """Run until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._options.check_every_s):
                    await member.wake.wait()
            member.wake.clear()
            await self.check(member)

    async def check(self, member: Member) -> None:
        """Look once, now."""
        async with member.care:
            try:
                await self._look(member)
            except EngineError as exc:
                await self._set_down(member, str(exc))

    async def _look(self, member: Member) -> None:
        if member in self._left_down:
            return
        if member.process is not None and not member.process.is_running:
            await self._revive(member, "its process died")
        elif member.state is State.DOWN:
            if self._is_hung(member):
                await self._revive(member, "it hung")
            else:
                await self._readmit(member)
        elif member.state is State.BEHIND:
            await self._publisher.catch_up(member)
            logger.info("%s serves version %d again", member.address, member.version)
        elif member.state is State.SUSPECT or self._is_quiet(member):
            if member.swap_lock.locked():
                return  # it is held on purpose, and its swap has deadlines of its own
            is_busy = member.num_running > 0 or self._pool.entry is not None
            await member.client.probe(is_busy=is_busy)
            if member.state is State.SUSPECT:
                await self._readmit(member)

    async def _readmit(self, member: Member) -> None:
        """It answers again: as it was, or after a restart that we did not make."""
        await reclaim(member)
        await member.client.resume()  # it may have been left paused
        member.info = await probe_server(member.client, model=self._model)
        self._down_since.pop(member, None)
        await self._pool.set_state(member, State.BEHIND, "it must show its version first")
        await self._publisher.catch_up(member)
        self._num_restarts.pop(member, None)

    async def _revive(self, member: Member, why: str) -> None:
        await self._set_down(member, why)
        assert member.process is not None
        assert self._restart is not None, "a process of ours has a launcher"
        await member.process.stop(grace_s=0.0)
        count = self._num_restarts.get(member, 0)
        if count >= self._options.max_restarts:
            await self._leave_down(member, why)
            return
        self._num_restarts[member] = count + 1
        logger.warning("restarting the SGLang server of %s: %s", member.address, why)
        member.process = self._restart(member.process)
        await wait_until_ready(
            member.client,
            timeout_s=self._options.start_timeout_s,
            is_running=lambda: member.process is not None and member.process.is_running,
        )
        await self._readmit(member)

    async def _leave_down(self, member: Member, why: str) -> None:
        """Another start would fail as the last ones did; the other servers go on."""
        assert member.process is not None
        self._left_down.add(member)
        reason = (
            f"{why}; it is left down after {self._options.max_restarts} starts that failed, see "
            f"{member.process.log_path}"
        )
        logger.error("the SGLang server of %s: %s", member.address, reason)
        await self._pool.set_state(member, State.DOWN, reason)

    async def _set_down(self, member: Member, reason: str) -> None:
        if member.state is not State.DOWN:
            logger.warning("the SGLang server of %s is down: %s", member.address, reason)
            self._down_since[member] = time.monotonic()
        await self._pool.set_state(member, State.DOWN, reason)
        await self._publisher.forget(member)

    def _is_quiet(self, member: Member) -> bool:
        return time.monotonic() - member.last_token_at > self._options.check_every_s

    def _is_hung(self, member: Member) -> bool:
        since = self._down_since.get(member)
        return (
            member.process is not None
            and since is not None
            and time.monotonic() - since > self._options.restart_hung_after_s
        )
