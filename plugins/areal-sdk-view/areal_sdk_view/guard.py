"""The guard before every request: the host, the token, the origin, and the headers that keep a page on its own host.

A run holds the texts of users, tools and models. Other pages in the same browser must not read them (token, no CORS),
not even under a name that they let point here (host), nor move the open tab (origin); and what a model wrote must not
act in the page (no inline script, no other host).
"""

import hmac
from collections.abc import Awaitable, Callable

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
"""The names by which a browser may call the server."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
CHANGES = frozenset({"POST", "PUT", "PATCH", "DELETE"})


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Add the headers to any response, as a stream is sent too."""
    response.headers.update(HEADERS)


class Guard:
    """The middleware. The first visit brings the token in the address and takes a cookie with it."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def __call__(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = self._refused(request) or self._admitted(request)
        if response is None:
            try:
                response = await handler(request)
            except web.HTTPException as refused:
                response = web.Response(status=refused.status, text=refused.reason)
        return response

    def _refused(self, request: web.Request) -> web.StreamResponse | None:
        name, _, _ = request.host.rpartition(":")
        if (name or request.host) not in NAMES:
            return _refusal("this server answers to 127.0.0.1 alone")
        given = (
            request.query.get("token")
            or _bearer(request)
            or request.cookies.get(_cookie(request), "")
        )
        if not hmac.compare_digest(_bytes(given), _bytes(self._token)):
            return _refusal("open the address that `areal-sdk view` printed: it has a token")
        origin = request.headers.get("Origin")
        is_own = origin == f"{request.scheme}://{request.host}" or (
            origin is None and _bearer(request)
        )
        if request.method in CHANGES and not is_own:
            return _refusal("a page of another origin cannot change anything here")
        return None

    def _admitted(self, request: web.Request) -> web.StreamResponse | None:
        """The way from the address with the token to the page without."""
        if "token" not in request.query or request.path != "/":
            return None
        response = web.Response(status=303, headers={"Location": "/"})
        response.set_cookie(_cookie(request), self._token, httponly=True, samesite="Lax", path="/")
        return response


def _refusal(text: str) -> web.Response:
    return web.Response(status=403, text=text)


def _bytes(text: str) -> bytes:
    """The bytes of a header, which need be no text."""
    return text.encode("utf-8", "surrogatepass")


def _bearer(request: web.Request) -> str:
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    return token if kind.lower() == "bearer" else ""


def _cookie(request: web.Request) -> str:
    """Cookies do not know ports: several viewers may run at once."""
    return f"areal-view-{request.host.rpartition(':')[2]}"
