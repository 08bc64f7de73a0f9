"""Passes calls on to another provider and records their text.

The provider sends no tokens, so no policy gradient can use what is recorded here; `sft` and `dpo` can. Use
it to watch an agent that runs on another model, and to collect its episodes. Requests, replies and
streams pass unchanged.
"""

import secrets
from collections.abc import Sequence
from urllib.parse import unquote

import aiohttp
from aiohttp import web

from areal_sdk.config import Quota
from areal_sdk.errors import ConfigError
from areal_sdk.gateway.control import ControlPlane
from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.metrics import GatewayMetrics
from areal_sdk.gateway.openapi import upstream_document
from areal_sdk.gateway.processes.peers import NamedBy
from areal_sdk.gateway.sampling.request import ChatRequest, SamplingPolicy
from areal_sdk.gateway.server import HttpServer
from areal_sdk.gateway.sessions.access import Access
from areal_sdk.gateway.sessions.accounts import Accounts, User
from areal_sdk.gateway.sessions.external import ExternalLimits, ExternalSessions
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.sessions.store import SessionStore
from areal_sdk.gateway.untrusted import LargeWork
from areal_sdk.gateway.upstream.provider import Provider, is_refusal
from areal_sdk.gateway.upstream.trace import Trace
from areal_sdk.gateway.winding_down import ends_sessions
from areal_sdk.gateway.wire.http import (
    MAX_BODY_BYTES,
    ErrorBody,
    Handler,
    guarded,
    json_response,
    not_found,
    read_body,
)
from areal_sdk.gateway.wire.reply import event
from areal_sdk.types import Turn

SAMPLING_PATHS = ("chat/completions", "completions", "responses", "messages")
COUNTING_PATHS = ("responses/input_tokens", "messages/count_tokens")

REPLY_HEADER = "x-areal-reply"
"""Header that names the reply for `POST /v1/reward`, even if the provider's own ids repeat."""


def check_address(url: str) -> None:
    """Refuse text that is no address of a provider, and a key in the address, because addresses are shown and
    stored."""
    if "@" in url.removeprefix("http://").removeprefix("https://").split("/", 1)[0]:
        raise ConfigError(
            "upstream: an address takes no user and no password, for it is written to files; "
            "give the provider's key in AREAL_SDK_UPSTREAM_KEY"
        )
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"upstream = {url!r}: give an address, as in https://host/v1")


class UpstreamGateway:
    """Serves another provider's models. Callers use this gateway's keys; the gateway uses the provider's."""

    def __init__(
        self,
        url: str,
        *,
        api_key: str = "",
        model_name: str = "",
        admin_key: str | None = None,
        users: Sequence[User] = (),
        quota: Quota | None = None,
        external: ExternalLimits | None = None,
        cors_origins: Sequence[str] = (),
        max_request_s: float = 600.0,
    ) -> None:
        """`url` ends in `/v1` as OpenAI's clients take it; `api_key` is the provider's.

        `model_name` is the model for which agents of this run ask. Callers may ask for any.
        """
        check_address(url)
        self.model_name = model_name
        self.admin_key = admin_key or f"sk-admin-{secrets.token_urlsafe(24)}"
        self.sessions = SessionStore(_NoModel(), sampling=SamplingPolicy(mode="respect"))
        self.external = ExternalSessions(self.sessions, limits=external)
        accounts = Accounts(users, admin_key=self.admin_key, quota=quota)
        self._admin = accounts.admin
        self._access = Access(self.sessions, self.external, accounts)
        self._server = HttpServer(has_given_key=admin_key is not None, cors_origins=cors_origins)
        self._control = ControlPlane(
            self.sessions,
            self.external,
            None,
            access=self._access,
            accounts=accounts,
            base_url=lambda: self.base_url,
        )
        self._provider = Provider(url, api_key=api_key, max_request_s=max_request_s)
        self._large = LargeWork()
        self._errors = GatewayMetrics().errors

    @property
    def base_url(self) -> str:
        """`http://host:port/v1`; known once started."""
        return self._server.base_url

    async def start(self, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen. Port 0 takes a free one."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.cleanup_ctx.append(self._provider.open)
        ends_sessions(app, self.external, self.sessions)
        app.router.add_get("/health", self._guard(_health))
        app.router.add_get("/ready", self._guard(_health))
        app.router.add_get("/openapi.json", self._guard(_openapi))
        self._control.add_routes(app.router, guard=self._guard)
        for prefix in ("/v1", "/s/{slug}/v1"):
            self._control.add_own_routes(app.router, prefix, guard=self._guard)
            app.router.add_route("*", f"{prefix}/{{path:.+}}", self._passing())
        app.router.add_route("*", r"/{path:[\s\S]*}", self._guard(not_found))
        await self._server.start(app, host=host, port=port)

    async def aclose(self) -> None:
        """Stop listening, give running answers a little time, end every session. Safe to call twice."""
        await self._server.aclose()
        self._large.close()

    def _guard(
        self,
        handler: Handler,
        write_error: ErrorBody = ApiError.openai_body,
        *,
        named_by: NamedBy = NamedBy.CALLER,  # one process has every session
    ) -> Handler:
        return guarded(handler, errors=self._errors, error_body=write_error)

    def _passing(self) -> Handler:
        async def handler(request: web.Request) -> web.StreamResponse:
            return await self._guard(self._pass, _error_body(request))(request)

        return handler

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        caller = self._access.caller(request)
        path = _path(request)
        if not _is_plain(path):
            return await not_found(request)
        is_sampling = request.method == "POST" and path in SAMPLING_PATHS
        may_pass = is_sampling or _touches_nothing(request.method, path)
        if not may_pass and caller.account is not self._admin:
            raise ApiError(
                403,
                f"{request.method} /v1/{path} takes the server's admin key: other keys sample, count "
                "tokens and look models up. What the provider keeps, it keeps for all users at once.",
                code="admin_only",
            )
        raw = await read_body(request)
        if not is_sampling:
            return await self._forward(request, raw, None)
        with self._access.sampling(caller) as session:
            session.admit()
            return await self._forward(request, raw, session)

    async def _forward(
        self, request: web.Request, raw: bytes, session: Session | None
    ) -> web.StreamResponse:
        trace = None if session is None else Trace(session, raw, self._large)
        async with self._provider.asked(request, _path(request), raw, session) as reply:
            headers = self._provider.headers_of(reply)
            if trace is not None:
                headers[REPLY_HEADER] = trace.reply_id
            is_stream = reply.content_type == "text/event-stream"
            if (trace is None or is_stream) and not is_refusal(reply):
                response = web.StreamResponse(status=reply.status, headers=headers)
                return await self._stream(request, reply, response, trace)
            answer = await self._provider.whole(reply, session)
            if trace is not None and reply.status == 200:
                await trace.record(answer, is_stream=False)
            return web.Response(body=answer, status=reply.status, headers=headers)

    async def _stream(
        self,
        request: web.Request,
        reply: aiohttp.ClientResponse,
        response: web.StreamResponse,
        trace: Trace | None,
    ) -> web.StreamResponse:
        """Pass a reply on as it comes, and keep it. Events that break off end with an error event."""
        await response.prepare(request)
        kept = bytearray()
        size = 0
        try:
            async for piece in self._provider.pieces(reply):
                size += len(piece)
                if trace is not None and not self._provider.is_too_long(size):
                    kept += piece
                await response.write(piece)
        except (aiohttp.ClientPayloadError, TimeoutError):
            if trace is None:
                self._errors["upstream_error"] += 1
                if request.transport is not None:
                    request.transport.abort()  # its client must not take it for whole
                return response
            error = trace.fault("the provider broke off its answer")
            write = _error_body(request)
            name = "error" if write is ApiError.anthropic_body else None
            await response.write(event(write(error), name=name))
        finally:  # also of a client that left: what it has seen by then may be judged
            if trace is not None and reply.status == 200:
                if size > len(kept):
                    self._errors["answer_too_long"] += 1
                    trace.miss_the_end(f"a streamed answer is over {self._provider.most_answer}")
                await trace.record(bytes(kept), is_stream=True)
        await response.write_eof()
        return response


class _NoModel:
    """The turn sampler of a gateway without a model: it refuses every request."""

    async def complete(self, session: Session, request: ChatRequest) -> Turn:
        raise ConfigError("another provider answers here: there are no tokens to sample")


def _path(request: web.Request) -> str:
    """The path of the request below `/v1`. Anthropic's SDK adds /v1 itself, even to the address
    that OpenAI's SDK wants."""
    return request.match_info["path"].removeprefix("v1/")


def _is_plain(path: str) -> bool:
    """Whether no segment of the path is empty, `.` or `..`, which the provider may read differently."""
    return not any(segment in ("", ".", "..") for segment in unquote(path).split("/"))


def _touches_nothing(method: str, path: str) -> bool:
    """Whether a request costs nothing and reads nothing that the provider keeps for all users together."""
    if method == "POST":
        return path in COUNTING_PATHS
    return method == "GET" and path.split("/")[0] == "models"


def _error_body(request: web.Request) -> ErrorBody:
    return ApiError.anthropic_body if _speaks_anthropic(request) else ApiError.openai_body


def _speaks_anthropic(request: web.Request) -> bool:
    return "anthropic-version" in request.headers or _path(request).startswith("messages")


async def _health(request: web.Request) -> web.Response:
    return json_response({"status": "ok", "version": 0})


async def _openapi(request: web.Request) -> web.Response:
    return json_response(upstream_document())
