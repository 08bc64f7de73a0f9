"""The listening socket of a gateway, from its start to its end. At the end running answers get a little time, then an
error that says that the server stops."""

import asyncio
import logging
import re
import resource
import socket
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError

from areal_sdk.errors import ConfigError
from areal_sdk.gateway.errors import server_stopping
from areal_sdk.gateway.processes.moving import MovedConnections
from areal_sdk.gateway.sessions.external import ExternalSessions
from areal_sdk.gateway.sessions.store import SessionStore

logger = logging.getLogger(__name__)

_LOOPBACK = ("127.0.0.1", "::1", "localhost")

_ALLOWED_HEADERS = "authorization, content-type, x-api-key, anthropic-version, anthropic-beta"
_EXPOSED_HEADERS = "retry-after, x-should-retry, x-request-id, x-areal-reply"
_HEADER_NAMES = re.compile(r"[A-Za-z0-9-]+(\s*,\s*[A-Za-z0-9-]+)*")

HEAD_S = 30.0
"""Deadline for the head of a new connection's first request."""

UNREAD_S = 60.0
"""Seconds after which a client that reads nothing of the data that waits for it counts as gone."""

KEEP_ALIVE_S = 75.0
"""Seconds without a request after which a connection is closed."""

_MOST_FILES = 65_536

_REFUSALS_S = 60.0
"""Seconds for which requests that are no HTTP share one line in the log."""


def check_host(host: str, *, has_given_key: bool) -> None:
    """Raise ConfigError if other machines reach the address and no key was chosen."""
    if host not in _LOOPBACK and not has_given_key:
        raise ConfigError(
            f"refusing to listen on {host} with a generated admin key: give one "
            "(AREAL_SDK_ADMIN_KEY, gateway.admin_key or --admin-key), or listen on 127.0.0.1"
        )


class HttpServer:
    """Serves one application at an address, from `start` to `aclose`."""

    def __init__(self, *, has_given_key: bool, cors_origins: Sequence[str] = ()) -> None:
        """`cors_origins` are the origins whose web pages may call: `*` for all, none by default."""
        self._has_given_key = has_given_key
        self._cors_origins = frozenset(cors_origins)
        self._runner: web.AppRunner | None = None
        self._base_url = ""
        self._is_loopback = False
        self._silent: asyncio.Task[None] | None = None
        self._moved: MovedConnections | None = None

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches the server."""
        return self._is_loopback

    @property
    def base_url(self) -> str:
        """`http://host:port/v1`; known once started."""
        if not self._base_url:
            raise ConfigError("the gateway has no address yet: await gateway.start() first")
        return self._base_url

    @property
    def app(self) -> web.Application | None:
        """The application that is served; None before `start` and after `aclose`."""
        return self._runner.app if self._runner is not None else None

    async def start(
        self,
        app: web.Application,
        *,
        host: str,
        port: int,
        unix_path: Path | None = None,
        door: Path | None = None,
    ) -> None:
        """Listen. Port 0 takes a free one.

        With `unix_path` other processes listen at the same port: they pass requests on to that socket, and
        hand connections over at `door`.
        """
        check_host(host, has_given_key=self._has_given_key)
        if self._cors_origins:
            self._allow_origins(app)
        runner = web.AppRunner(
            app,
            access_log=None,
            logger=_ServerLog(logger),
            auto_decompress=False,  # `refuse_body` refuses what is compressed
            handler_cancellation=True,  # a client that leaves frees its slot in the engine
            shutdown_timeout=1.0,
            keepalive_timeout=KEEP_ALIVE_S,
            lingering_time=0.0,  # `guarded` throws away bodies that are not read
        )
        await runner.setup()
        sites: list[web.BaseSite] = [
            web.TCPSite(runner, host, port, reuse_port=unix_path is not None)
        ]
        if unix_path is not None:
            sites.append(web.UnixSite(runner, unix_path))
        try:
            for site in sites:
                await site.start()
        except OSError as exc:
            await runner.cleanup()
            raise _cannot_listen(host, port, exc) from exc
        self._runner = runner
        self._is_loopback = host in _LOOPBACK
        assert runner.server is not None, "it is set up"
        if door is not None:
            self._moved = MovedConnections(door, runner.server)
        most_silent = _raise_file_limit() // 2
        self._silent = asyncio.create_task(_close_silent(runner.server, most=most_silent))
        bound = runner.addresses[0][1]
        self._base_url = url_of(host, bound)

    async def aclose(self) -> None:
        """Stop listening. Safe to call twice."""
        silent, self._silent = self._silent, None
        if silent is not None:
            silent.cancel()
            await asyncio.gather(silent, return_exceptions=True)
        moved, self._moved = self._moved, None
        if moved is not None:
            await moved.aclose()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _allow_origins(self, app: web.Application) -> None:
        """Let web pages of the allowed origins call: browsers ask before they call, and check every answer."""

        async def allow(request: web.Request, response: web.StreamResponse) -> None:
            origin = request.headers.get("Origin", "")
            response.headers["Vary"] = "Origin"
            if origin in self._cors_origins or "*" in self._cors_origins:
                response.headers["Access-Control-Allow-Origin"] = origin or "*"
                response.headers["Access-Control-Allow-Headers"] = _allowed_headers(request)
                response.headers["Access-Control-Expose-Headers"] = _EXPOSED_HEADERS
                response.headers["Access-Control-Allow-Methods"] = "GET, POST, DELETE"

        app.on_response_prepare.append(allow)
        app.middlewares.append(_preflight)


class _ServerLog(logging.LoggerAdapter[logging.Logger]):
    """The log of aiohttp's server, which would write a malformed request with its headers, keys among them.

    Anybody can send such requests. So one line in `_REFUSALS_S` says how many came, and none says what they held.
    """

    _num_refused = 0
    _next_line_at = 0.0

    def log(self, level: int, msg: object, *args: object, **options: Any) -> None:
        if not isinstance(options.get("exc_info"), HttpProcessingError):
            super().log(level, msg, *args, **options)
            return
        self._num_refused += 1
        if time.monotonic() >= self._next_line_at:
            self._next_line_at = time.monotonic() + _REFUSALS_S
            super().warning("requests that are not HTTP, refused: %d", self._num_refused)
            self._num_refused = 0


@web.middleware
async def _preflight(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    if request.method == "OPTIONS":
        return web.Response(status=204)
    return await handler(request)


def _allowed_headers(request: web.Request) -> str:
    """The usual headers and those that the page asks for: SDKs in browsers send a dozen of their
    own (`x-stainless-*`)."""
    asked = request.headers.get("Access-Control-Request-Headers", "")
    return f"{_ALLOWED_HEADERS}, {asked}" if _HEADER_NAMES.fullmatch(asked) else _ALLOWED_HEADERS


async def _close_silent(server: web.Server, *, most: int) -> None:
    """Close connections that send no request: after `HEAD_S`, or, if many are open, the oldest ones at once. Close
    also those that send requests and read no answer. Otherwise half requests, or answers that nobody reads, could use
    up all connections that the process may have."""
    loop = asyncio.get_running_loop()
    spoke: set[Any] = set()
    since: dict[Any, float] = {}
    unread: dict[Any, tuple[int, float]] = {}
    make_request = server.request_factory

    def note(message: Any, payload: Any, protocol: Any, *rest: Any) -> web.BaseRequest:
        spoke.add(protocol)
        return make_request(message, payload, protocol, *rest)

    server.request_factory = note
    while True:
        now = loop.time()
        connected = server.connections
        spoke.intersection_update(connected)
        since = {c: since.get(c, now) for c in connected if c not in spoke}
        oldest = list(since)[: max(0, len(since) - most)]
        for connection in {*oldest, *(c for c in since if now - since[c] > HEAD_S)}:
            connection.force_close()
        unread = _still_unread(unread, connected, now)
        for connection in [c for c, (_, began) in unread.items() if now - began > UNREAD_S]:
            connection.transport.abort()
        await asyncio.sleep(min(1.0, HEAD_S / 2, UNREAD_S / 2))


def _still_unread(
    known: Mapping[Any, tuple[int, float]], connections: Iterable[Any], now: float
) -> dict[Any, tuple[int, float]]:
    """The number of unread bytes of each connection, and the time since which that number has not changed."""
    sizes = (
        (c, c.transport.get_write_buffer_size()) for c in connections if c.transport is not None
    )
    return {
        c: known[c] if c in known and known[c][0] == size else (size, now)
        for c, size in sizes
        if size
    }


def _raise_file_limit() -> int:
    """Raise the number of open files to the most that the system allows; return that number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return _MOST_FILES if soft == resource.RLIM_INFINITY else soft
    with suppress(ValueError, OSError):  # a system that forbids it
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return wanted
    return soft


def reserve_port(host: str, port: int) -> socket.socket:
    """A socket that keeps a port for several processes, which listen there while it is open. Port 0 takes a
    free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as probe:  # would fail where any other listens
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.bind(address)
    except OSError as exc:
        raise _cannot_listen(host, port, exc) from exc
    return sock


def check_can_listen(host: str, port: int, *, has_given_key: bool) -> None:
    """Raise ConfigError for an address at which a server may not or cannot listen, before the server loads its
    model."""
    check_host(host, has_given_key=has_given_key)
    reserve_port(host, port).close()


def url_of(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"


def _cannot_listen(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError(
        f"cannot listen on {host}:{port} ({error.strerror or error}): choose another port, or "
        "0 for any free one"
    )


STOP_GRACE_S = 5.0
"""Seconds that running answers get when the server stops. The time is short: whoever pressed Ctrl-C waits for it."""

_LOOK_S = 0.02
"""Pause between two looks at the answers that still run."""


def ends_sessions(app: web.Application, external: ExternalSessions, sessions: SessionStore) -> None:
    """Have `app` end all sessions when it stops. By then nobody can connect any more. Requests of callers that still
    run get up to `STOP_GRACE_S` to be answered."""

    async def end(_: web.Application) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + STOP_GRACE_S
        while any(live.num_running for live in external) and clock() < until:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(_LOOK_S)
        for live in external:
            live.session.refuse_with(server_stopping)
        external.close_all()
        sessions.close_all()

    app.on_shutdown.append(end)
