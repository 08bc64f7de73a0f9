"""The way from a command in a sandbox to the model: calls that sample, and nothing else of the gateway.

A session also takes rewards over HTTP. Programs of a model run beside the agent and have its key, so they could reward
themselves; here their rewards find no address. When the relay closes, nothing in the sandbox reaches the model any more.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import aiohttp
from aiohttp import web

_SAMPLES = (
    "chat/completions",
    "completions",
    "responses",
    "messages",
    "messages/count_tokens",
)
_HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})
"""Headers of one connection, which each side writes for itself."""
_MAX_BODY = 64 << 20


class Relay:
    """A relay of model calls from a sandbox to a session. `relayed(...)` starts one."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._runner.addresses[0][:2]
        return host, port

    async def close(self) -> None:
        """Take no more calls, and end those that are open. Idempotent."""
        await self._runner.cleanup()


@asynccontextmanager
async def relayed(base_url: str) -> AsyncIterator[Relay]:
    """A relay to the session at `base_url`, which ends in `/v1`. The paths stay the same."""
    url = urlsplit(base_url)
    async with aiohttp.ClientSession(auto_decompress=False) as client:

        async def forward(request: web.Request) -> web.StreamResponse:
            target = f"{url.scheme}://{url.netloc}{request.path_qs}"
            asked = client.request(
                request.method,
                target,
                headers=[(k, v) for k, v in request.headers.items() if k.lower() not in _HOP],
                data=await request.read(),
                timeout=aiohttp.ClientTimeout(total=None),
            )
            async with asked as answer:
                reply = web.StreamResponse(status=answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in _HOP:
                        reply.headers.add(name, value)
                await reply.prepare(request)
                async for chunk in answer.content.iter_any():
                    await reply.write(chunk)
                await reply.write_eof()
                return reply

        app = web.Application(client_max_size=_MAX_BODY)
        for base in {
            url.path.rstrip("/"),
            "/v1",
        }:  # clients that keep host and key alone call the second
            for name in _SAMPLES:
                app.router.add_post(f"{base}/{name}", forward)
            app.router.add_get(f"{base}/models", forward)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        relay = Relay(runner)
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield relay
        finally:
            await relay.close()
