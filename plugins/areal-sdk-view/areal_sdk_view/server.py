"""The server: the page, its modules, and the API below `/api` (`api.py`)."""

import asyncio
import os
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from aiohttp import web

from areal_sdk_view.api import Api
from areal_sdk_view.guard import HOST, Guard, add_headers
from areal_sdk_view.library import Library

TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
}
STATIC = Path(__file__).parent / "static"
TOKEN_VARIABLE = "AREAL_SDK_VIEW_TOKEN"
"""The token of the address, if it is to be known before: others can read the arguments of a process."""
MAX_BODY = 1 << 16
"""Maximum number of bytes of a request: a place and a quote."""
SHUTDOWN_S = 1.0
"""Deadline of open streams when the server stops."""


def static_files() -> dict[str, bytes]:
    """The page, its style and its modules, by path."""
    found = (file for file in STATIC.rglob("*") if file.suffix in TYPES)
    return {file.relative_to(STATIC).as_posix(): file.read_bytes() for file in found}


def make_app(roots: Sequence[Path], *, token: str) -> web.Application:
    app = web.Application(middlewares=[web.middleware(Guard(token))], client_max_size=MAX_BODY)
    app.on_response_prepare.append(add_headers)
    pages = static_files()

    async def page(request: web.Request) -> web.Response:
        name = request.match_info.get("name") or "index.html"
        if name not in pages:
            raise web.HTTPNotFound
        kind = TYPES[Path(name).suffix]
        return web.Response(body=pages[name], content_type=kind, charset="utf-8")

    app.router.add_get("/", page)
    app.router.add_get("/static/{name:.+}", page)
    library = Library(roots)
    Api(library).add_to(app)

    async def warmed(_: web.Application) -> AsyncIterator[None]:
        """Read the newest run while its user opens the page."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(asyncio.to_thread(library.warm))
            yield

    app.cleanup_ctx.append(warmed)
    return app


async def start(
    app: web.Application, *, at: int | socket.socket, token: str
) -> tuple[web.AppRunner, str]:
    """The running server, to be cleaned up by the caller, and its address. `at`: a port or a socket that listens."""
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=SHUTDOWN_S)
    await runner.setup()
    site = web.TCPSite(runner, HOST, at) if isinstance(at, int) else web.SockSite(runner, at)
    await site.start()
    bound = runner.addresses[0][1]
    return runner, f"http://{HOST}:{bound}/?token={token}"


def serve(roots: Sequence[Path], *, port: int, say: Callable[[str], object]) -> None:
    """Serve until Ctrl-C."""
    token = os.environ.pop(TOKEN_VARIABLE, "") or secrets.token_urlsafe(16)

    async def run() -> None:
        runner, address = await start(make_app(roots, token=token), at=port, token=token)
        try:
            say(f"view: {address}")
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    asyncio.run(run())
