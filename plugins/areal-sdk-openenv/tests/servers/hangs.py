"""A server that is healthy until its first session, which blocks it for good."""

import sys
import time

from aiohttp import web


async def health(request: web.Request) -> web.Response:
    return web.Response(text="ok")


async def session(request: web.Request) -> web.WebSocketResponse:
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    time.sleep(600)  # noqa: ASYNC251 - it hangs
    return socket


app = web.Application()
app.router.add_get("/health", health)
app.router.add_get("/ws", session)
web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None)
