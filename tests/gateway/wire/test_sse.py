"""Events reach whoever reads them, however slowly."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator

import aiohttp
from aiohttp import web

from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.wire.http import send_events

_LARGE = b"data: " + b"x" * (4 << 20) + b"\n\n"
"""More than the buffers of both ends hold: the server has to wait for the reader."""


def _write_error(error: ApiError) -> bytes:
    return b"data: error\n\n"


async def test_what_comes_while_a_slow_client_reads_is_sent_too() -> None:
    is_over = asyncio.Event()

    async def events() -> AsyncGenerator[bytes, None]:
        yield _LARGE
        for number in range(3):
            await asyncio.sleep(0)
            yield b"data: %d\n\n" % number
        is_over.set()

    async def answer(request: web.Request) -> web.StreamResponse:
        return await send_events(request, events(), write_error=_write_error, errors=Counter())

    app = web.Application()
    app.router.add_get("/", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        async with aiohttp.ClientSession() as http, http.get(url) as reply:
            await is_over.wait()  # every event is there before most of the first one was read
            body = await reply.read()
    finally:
        await runner.cleanup()
    assert body == _LARGE + b"data: 0\n\ndata: 1\n\ndata: 2\n\n"
