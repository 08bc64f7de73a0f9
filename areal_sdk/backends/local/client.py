"""`LocalEngineClient`: a rollout node samples from the engine's process, which the main process owns."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any

from areal_sdk.backends.local.requests import Requester, engine_errors
from areal_sdk.engine import (
    EngineClient,
    EngineInfo,
    GenerateChunk,
    GenerateRequest,
    GenerateResult,
    collect,
)
from areal_sdk.errors import EngineError
from areal_sdk.process import Child
from areal_sdk.process.network.guests import visit

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 30.0
"""Seconds to wait for the connection to an engine that lives."""
RETURN_EVERY_S = 1.0
"""Seconds between two attempts of a node to connect again after it lost its connection."""


class LocalEngineClient(EngineClient):
    """Asks the engine's process directly. While the engine is down, requests wait for its restart.

    Requests in flight at its death fail, as they do in the main process: their episodes are tried again.
    """

    def __init__(self, info: EngineInfo, *, name: str) -> None:
        super().__init__(info, name=name)
        self._requester: Requester | None = None
        self._state: Mapping[str, Any] | None = None
        """The latest state of the engine that the main process told."""
        self._news = asyncio.Event()
        self._returning = asyncio.Lock()
        self._version = 0

    async def told(self, state: Mapping[str, Any]) -> None:
        """Take the engine's new address. If the engine does not answer, it is down for the moment, and requests
        wait."""
        self._state = state
        try:
            await self._connect(state)
        except EngineError as exc:
            logger.warning("news of the engine: %s", exc)

    async def _connect(self, state: Mapping[str, Any]) -> None:
        with engine_errors():
            child = await visit(
                state["address"],
                token=state["token"],
                name=self.name,
                host="engine",
                timeout_s=CONNECT_TIMEOUT_S,
            )
        if state is not self._state:  # there was news meanwhile
            await child.aclose()
            return
        former, self._requester = (
            self._requester,
            Requester(child, self.info, state["deterministic"]),
        )
        self._news.set()
        self._news = asyncio.Event()
        if former is not None:
            await former.child.aclose()

    @property
    def version(self) -> int:
        """The newest version that came with an answer. The main process knows a new version earlier."""
        return self._version

    async def stream(self, request: GenerateRequest) -> AsyncGenerator[GenerateChunk, None]:
        requester = await self._connected()
        async with aclosing(requester.chunks(request, is_streamed=True)) as chunks:
            async for chunk in chunks:
                self._version = max(self._version, *chunk.versions, 0)
                yield chunk

    async def generate(self, request: GenerateRequest) -> GenerateResult:
        requester = await self._connected()
        async with aclosing(requester.chunks(request, is_streamed=False)) as chunks:
            result = await collect(chunks)
        self._version = max(self._version, *result.versions, 0)
        return result

    async def aclose(self) -> None:
        requester, self._requester = self._requester, None
        if requester is not None:
            await requester.child.aclose()

    async def _connected(self) -> Requester:
        """The connection, once there is one. The caller has a deadline: that of its request."""
        while self._requester is None or _is_gone(self._requester.child):
            await self._return()
        return self._requester

    async def _return(self) -> None:
        """Connect again, since perhaps only the link was down. Otherwise wait until the main process tells a new
        address."""
        news = self._news
        async with self._returning:
            if news.is_set():
                return  # connected meanwhile
            assert self._state is not None, "a client is told where the engine is, and then asked"
            try:
                await self._connect(self._state)
            except EngineError:
                with suppress(TimeoutError):
                    async with asyncio.timeout(RETURN_EVERY_S):
                        await news.wait()


def _is_gone(child: Child) -> bool:
    return child.exited.done()
