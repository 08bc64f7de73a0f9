"""The listening socket of a gateway."""

from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from areal_sdk.errors import ConfigError

_LOOPBACK = ("127.0.0.1", "::1", "localhost")

_ALLOWED_HEADERS = "authorization, content-type, x-api-key, anthropic-version, anthropic-beta"


class HttpServer:
    """Serves one application at an address, from `start` to `aclose`."""

    def __init__(self, *, has_given_key: bool, cors_origins: Sequence[str] = ()) -> None:
        """`cors_origins`: whose web pages may call; `*` for all, none by default."""
        self._has_given_key = has_given_key
        self._cors_origins = frozenset(cors_origins)
        self._runner: web.AppRunner | None = None
        self._base_url = ""

    @property
    def base_url(self) -> str:
        """`http://host:port/v1`; known once started."""
        if not self._base_url:
            raise ConfigError("the gateway has no address yet: await gateway.start() first")
        return self._base_url

    @property
    def app(self) -> web.Application | None:
        """What is served; None while nothing is."""
        return self._runner.app if self._runner is not None else None

    async def start(self, app: web.Application, *, host: str, port: int) -> None:
        """Listen. Port 0 takes a free one."""
        if host not in _LOOPBACK and not self._has_given_key:
            raise ConfigError(
                f"refusing to listen on {host} with a generated admin key: give one (--admin-key, "
                "AREAL_SDK_ADMIN_KEY or gateway.admin_key), or listen on 127.0.0.1"
            )
        if self._cors_origins:
            self._allow_origins(app)
        runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,  # a client that leaves frees its slot in the engine
            shutdown_timeout=1.0,
        )
        await runner.setup()
        site = web.TCPSite(runner, host, port)
        try:
            await site.start()
        except OSError as exc:
            await runner.cleanup()
            raise ConfigError(
                f"cannot listen on {host}:{port} ({exc.strerror or exc}): choose another port, or "
                "0 for any free one"
            ) from exc
        self._runner = runner
        bound = runner.addresses[0][1]
        self._base_url = f"http://{f'[{host}]' if ':' in host else host}:{bound}/v1"

    async def aclose(self) -> None:
        """Stop listening. Safe to call twice."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def _allow_origins(self, app: web.Application) -> None:
        """Browsers ask before they call, and look at every answer."""

        async def allow(request: web.Request, response: web.StreamResponse) -> None:
            origin = request.headers.get("Origin", "")
            response.headers["Vary"] = "Origin"
            if origin in self._cors_origins or "*" in self._cors_origins:
                response.headers["Access-Control-Allow-Origin"] = origin or "*"
                response.headers["Access-Control-Allow-Headers"] = _ALLOWED_HEADERS
                response.headers["Access-Control-Allow-Methods"] = "GET, POST, DELETE"

        app.on_response_prepare.append(allow)
        app.middlewares.append(_preflight)


@web.middleware
async def _preflight(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    if request.method == "OPTIONS":
        return web.Response(status=204)
    return await handler(request)
