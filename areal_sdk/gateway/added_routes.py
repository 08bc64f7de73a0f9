"""Routes that packages add to the gateway of a model, and their calls as `areal_sdk.routes` promises them."""

from collections.abc import Iterable
from pathlib import Path

from aiohttp import web

from areal_sdk.errors import ConfigError
from areal_sdk.gateway.access import Access
from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.processes.peers import Guard
from areal_sdk.gateway.wire.http import ErrorBody, Handler, read_body
from areal_sdk.gateway.wire.reply import event
from areal_sdk.routes import Call, Route


class GatewayCall(Call):
    """One call. Its body and its errors are read and written as those of the gateway's own routes."""

    def __init__(self, request: web.Request, access: Access, run_dir: Path | None = None) -> None:
        self.request = request
        self.run_dir = run_dir
        self._access = access
        self._caller = access.caller(request)

    @property
    def path(self) -> str:
        return path_of(self.request)

    @property
    def is_admin(self) -> bool:
        return self._access.is_admins(self._caller)

    @property
    def user(self) -> str:
        return "" if self._caller.account is None else self._caller.account.name

    async def body(self) -> bytes:
        return await read_body(self.request)

    def error_event(self, error: ApiError) -> bytes:
        write = error_body(self.request)
        name = "error" if write is ApiError.anthropic_body else None
        return event(write(error), name=name)


def path_of(request: web.Request) -> str:
    """The path of the request below `/v1` or `/v1/v1`: Anthropic's SDK adds /v1 even to an address that ends with it,
    as OpenAI's SDK wants it."""
    slug = request.match_info.get("slug")
    below = request.path if slug is None else request.path.removeprefix(f"/s/{slug}")
    return below.removeprefix("/v1/").removeprefix("v1/")


def error_body(request: web.Request) -> ErrorBody:
    """The form of an error in the wire format of the request."""
    is_anthropic = "anthropic-version" in request.headers or path_of(request).startswith("messages")
    return ApiError.anthropic_body if is_anthropic else ApiError.openai_body


def answers_in_own_format(handler: Handler, guard: Guard) -> Handler:
    """`handler` with its errors in the wire format of each request."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return await guard(handler, error_body(request))(request)

    return answer


def add_routes(
    router: web.UrlDispatcher,
    routes: Iterable[Route],
    *,
    access: Access,
    guard: Guard,
    run_dir: Path | None,
) -> None:
    """Add the routes at all addresses of callers. ConfigError for a path that the gateway serves itself."""
    served = {(one.method, one.resource.canonical) for one in router.routes() if one.resource}
    for route in routes:
        if (route.method.upper(), f"/v1/{route.path}") in served:
            raise ConfigError(
                f"a plugin's route {route.method} /v1/{route.path} is one of the gateway itself: give it another path"
            )
        for prefix in ("/v1", "/s/{slug}/v1"):
            handler = answers_in_own_format(_counted(route, access, run_dir), guard)
            router.add_route(route.method, f"{prefix}/{route.path}", handler)


def _counted(route: Route, access: Access, run_dir: Path | None) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        with access.counting(request):
            return await route.answer(GatewayCall(request, access, run_dir))

    return answer
