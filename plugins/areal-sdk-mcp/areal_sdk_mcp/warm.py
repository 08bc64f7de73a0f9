"""Servers that many episodes share: one for each worker process and each set of options.

The event loop owns them. They are held by asynchronous generators, which a loop closes before it is
closed itself: later, neither a pipe nor a connection can be closed any more.
"""

import asyncio
import atexit
from collections.abc import AsyncGenerator, Callable, Hashable
from weakref import WeakKeyDictionary

from areal_sdk_mcp.server import McpServer
from areal_sdk_mcp.stdio import kill_group

Loop = asyncio.AbstractEventLoop


class _Warm:
    """The shared server of one set of options."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.server: McpServer | None = None
        self._holder: AsyncGenerator[McpServer, None] | None = None

    async def start(self, server: McpServer) -> McpServer:
        """Start `server`, in place of the one that there was."""
        await self.aclose()
        self._holder = self._hold(server)
        return await anext(self._holder)

    async def aclose(self) -> None:
        if self._holder is not None:
            await self._holder.aclose()

    async def _hold(self, server: McpServer) -> AsyncGenerator[McpServer, None]:
        async with server:
            self.server = server
            try:
                yield server
            finally:
                self.server = None


_of_loop: "WeakKeyDictionary[Loop, dict[Hashable, _Warm]]" = WeakKeyDictionary()


async def shared_server(key: Hashable, make: Callable[[], McpServer]) -> McpServer:
    """The running server for `key`; it is started if there is none, or if the last one was lost."""
    warm = _of_loop.setdefault(asyncio.get_running_loop(), {}).setdefault(key, _Warm())
    async with warm.lock:  # episodes that begin together start one server
        if warm.server is not None and not warm.server.is_lost:
            return warm.server
        return await warm.start(make())


async def close_shared_servers() -> None:
    """End those of this event loop now."""
    for warm in _of_loop.pop(asyncio.get_running_loop(), {}).values():
        await warm.aclose()


@atexit.register
def _kill_all() -> None:
    """Kill servers that are still running, because their event loop was never closed."""
    for of_loop in list(_of_loop.values()):
        for warm in of_loop.values():
            if warm.server is not None and (pid := warm.server.pid) is not None:
                kill_group(pid)
