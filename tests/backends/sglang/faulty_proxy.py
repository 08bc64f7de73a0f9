"""A real HTTP proxy in front of a real server, which breaks what a test tells it to break."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from aiohttp import web

Rewrite = Callable[[dict[str, Any]], dict[str, Any]]


@dataclass
class FaultyProxy:
    upstream: str
    fail: dict[str, int] = field(default_factory=dict)
    """path -> how many of its next requests are answered 500."""
    refuse: dict[str, int] = field(default_factory=dict)
    """path -> how many of its next requests are answered 400."""
    swallow: dict[str, int] = field(default_factory=dict)
    """path -> how many of its next requests are answered with success, and do nothing."""
    rewrite: dict[str, Rewrite] = field(default_factory=dict)
    """path -> what becomes of the request's body."""
    rewrite_answer: dict[str, Rewrite] = field(default_factory=dict)
    """path -> what becomes of the JSON it is answered with."""
    cut_streams_after: int | None = None
    """Close the next stream after so many events."""
    silence: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to have requests accepted and never answered."""
    port: int = 0
    """0: any free one."""
    address: str = ""
    requests: list[str] = field(default_factory=list)
    passed_on: list[str] = field(default_factory=list)
    """Paths of the requests that no silence holds."""

    def __post_init__(self) -> None:
        self.address = f"http://127.0.0.1:{self.port}"

    @asynccontextmanager
    async def running(self) -> AsyncIterator["FaultyProxy"]:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port)
        await site.start()
        assert site._server is not None
        self.address = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
        async with aiohttp.ClientSession(read_bufsize=1 << 22) as self._session:
            try:
                yield self
            finally:
                await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        self.requests.append(path)
        body = await request.read()
        if self.silence.is_set():
            await asyncio.Event().wait()
        self.passed_on.append(path)
        if self._takes(self.fail, path):
            return web.Response(status=500, text="injected")
        if self._takes(self.refuse, path):
            return web.json_response({"success": False, "message": "injected"}, status=400)
        if self._takes(self.swallow, path):
            return web.json_response({"success": True, "message": "swallowed"})
        if path in self.rewrite:
            body = orjson.dumps(self.rewrite[path](orjson.loads(body)))
        async with self._session.request(
            request.method,
            self.upstream + path,
            data=body,
            headers={"Content-Type": "application/json"},
        ) as response:
            if "event-stream" in response.headers.get("Content-Type", ""):
                return await self._stream(request, response)
            answer = await response.read()
            if path in self.rewrite_answer:
                answer = orjson.dumps(self.rewrite_answer[path](orjson.loads(answer)))
            return web.Response(status=response.status, body=answer)

    async def _stream(
        self, request: web.Request, upstream: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        left, self.cut_streams_after = self.cut_streams_after, None
        async for line in upstream.content:
            await response.write(line)
            if left is not None and line.startswith(b"data:"):
                left -= 1
                if left == 0:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
        await response.write_eof()
        return response

    @staticmethod
    def _takes(faults: dict[str, int], path: str) -> bool:
        if faults.get(path, 0) > 0:
            faults[path] -= 1
            return True
        return False
