"""Servers that many episodes share: one for each worker process and key. Packages with servers of another kind use it too."""

import asyncio
import atexit
from collections.abc import AsyncGenerator, Callable, Hashable
from typing import Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary


class SharedServer(Protocol):
    """A server that many episodes use at once. If its start fails, nothing is left running."""

    @property
    def is_lost(self) -> bool:
        """Whether another one has to be started in its place."""

    async def start(self) -> None: ...

    async def aclose(self) -> None: ...

    def kill(self) -> None:
        """End without an event loop."""


ServerT = TypeVar("ServerT", bound=SharedServer)


class _Place(Generic[ServerT]):
    """The place of one server in one event loop."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.server: ServerT | None = None
        self._holder: AsyncGenerator[ServerT, None] | None = None

    async def start(self, server: ServerT) -> ServerT:
        """Start `server`, in place of the one that there was."""
        await self.aclose()
        self._holder = self._hold(server)
        return await anext(self._holder)

    async def aclose(self) -> None:
        if self._holder is not None:
            await self._holder.aclose()

    async def _hold(self, server: ServerT) -> AsyncGenerator[ServerT, None]:
        await server.start()
        self.server = server
        try:
            yield server
        finally:
            self.server = None
            await server.aclose()


class SharedServers(Generic[ServerT]):
    """Servers that the episodes of a process share: one for each event loop and key.

    They are held by asynchronous generators, which a loop closes before it is closed itself: later, neither a pipe nor a
    connection can be closed any more. Servers of a loop that was never closed are killed when the process exits.
    """

    def __init__(self) -> None:
        self._loops: WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[Hashable, _Place[ServerT]]
        ] = WeakKeyDictionary()
        atexit.register(self._kill)

    async def get(self, key: Hashable, make: Callable[[], ServerT]) -> ServerT:
        """The running server for `key`: started if there is none, or if the last one was lost."""
        places = self._loops.setdefault(asyncio.get_running_loop(), {})
        place = places.setdefault(key, _Place())
        async with place.lock:  # episodes that begin together start one server
            if place.server is not None and not place.server.is_lost:
                return place.server
            return await place.start(make())

    async def aclose(self) -> None:
        """End the servers of this event loop now."""
        for place in self._loops.pop(asyncio.get_running_loop(), {}).values():
            await place.aclose()

    def _kill(self) -> None:
        for places in [*self._loops.values()]:
            for place in places.values():
                if place.server is not None:
                    place.server.kill()
