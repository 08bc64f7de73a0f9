"""Servers that many episodes share: one for each worker process and each set of options."""

import asyncio
import atexit
from collections.abc import Callable, Hashable
from weakref import WeakKeyDictionary

from areal_sdk_mcp.server import McpServer
from areal_sdk_mcp.stdio import kill_group

Loop = asyncio.AbstractEventLoop


class _Warm:
    """The shared server of one set of options."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.server: McpServer | None = None


_of_loop: "WeakKeyDictionary[Loop, dict[Hashable, _Warm]]" = WeakKeyDictionary()


async def shared_server(key: Hashable, make: Callable[[], McpServer]) -> McpServer:
    """The running server for `key`; it is started if there is none, or if the last one was lost."""
    warm = _of_loop.setdefault(asyncio.get_running_loop(), {}).setdefault(key, _Warm())
    async with warm.lock:  # episodes that begin together start one server
        if warm.server is not None and not warm.server.is_lost:
            return warm.server
        if warm.server is not None:
            await warm.server.aclose()
            warm.server = None
        server = make()
        await server.start()
        warm.server = server
        return server


async def close_shared_servers() -> None:
    """End those of this event loop. A process that ends without it kills them as it ends."""
    for warm in _of_loop.pop(asyncio.get_running_loop(), {}).values():
        if warm.server is not None:
            await warm.server.aclose()


@atexit.register
def _kill_all() -> None:
    for of_loop in list(_of_loop.values()):
        for warm in of_loop.values():
            if warm.server is not None and (pid := warm.server.pid) is not None:
                kill_group(pid)
