"""Passes calls on to another provider and records their text.

The provider sends no tokens, so no policy gradient can use what is recorded here; `sft` and `dpo` can. Use
it to watch an agent that runs on another model, and to collect its episodes. Requests, replies and
streams pass unchanged.
"""

import secrets
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from urllib.parse import quote, unquote

import aiohttp
from aiohttp import web

from areal_sdk.config import Quota
from areal_sdk.errors import ConfigError
from areal_sdk.gateway.control import ControlPlane
from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.metrics import GatewayMetrics
from areal_sdk.gateway.openapi import upstream_document
from areal_sdk.gateway.processes.siblings import NamedBy
from areal_sdk.gateway.sampling.request import ChatRequest, SamplingPolicy
from areal_sdk.gateway.server import HttpServer
from areal_sdk.gateway.sessions.access import Access
from areal_sdk.gateway.sessions.accounts import Accounts, User
from areal_sdk.gateway.sessions.external import ExternalLimits, ExternalSessions
from areal_sdk.gateway.sessions.history import History
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.sessions.store import SessionStore
from areal_sdk.gateway.untrusted import LARGE, LargeWork
from areal_sdk.gateway.upstream.reply import UpstreamReply, read_reply
from areal_sdk.gateway.upstream.request import UpstreamRequest, read_request
from areal_sdk.gateway.winding_down import ends_sessions
from areal_sdk.gateway.wire.http import (
    MAX_BODY_BYTES,
    ErrorBody,
    Handler,
    guarded,
    json_response,
    not_found,
    parse_body,
    read_body,
)
from areal_sdk.gateway.wire.reply import event
from areal_sdk.types import Turn

SAMPLING_PATHS = ("chat/completions", "completions", "responses", "messages")
COUNTING_PATHS = ("responses/input_tokens", "messages/count_tokens")

_PASSED_ON = ("content-type", "accept", "openai-", "anthropic-", "x-stainless-")
_PASSED_BACK = (
    "content-type",
    "retry-after",
    "x-request-id",
    "request-id",
    "x-should-retry",
    "openai-",
    "anthropic-",
    "x-ratelimit-",
)

REPLY_HEADER = "x-areal-reply"
"""Names the reply for `POST /v1/reward`, also where the provider's own ids repeat."""

_MOST_KEPT_BYTES = 8 * 1024 * 1024
"""Of one streamed reply, for its trace."""


def check_address(url: str) -> None:
    """Refuse what is no provider's address, and a key in it: addresses are shown and written."""
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

        `model_name` is what agents that are played here ask for; callers ask as they like.
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
        self._url = url.rstrip("/")
        self._api_key = api_key
        self._large = LargeWork()
        self._timeout = aiohttp.ClientTimeout(total=max_request_s)
        self._errors = GatewayMetrics().errors
        self._http: aiohttp.ClientSession | None = None

    @property
    def base_url(self) -> str:
        """`http://host:port/v1`; known once started."""
        return self._server.base_url

    async def start(self, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen. Port 0 takes a free one."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.cleanup_ctx.append(self._open_client)
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

    async def _open_client(self, app: web.Application) -> AsyncIterator[None]:
        # The provider's bytes are ours to read: no compression, and no cookies of one user's.
        jar = aiohttp.DummyCookieJar()
        async with aiohttp.ClientSession(timeout=self._timeout, cookie_jar=jar) as self._http:
            yield

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
        trace = None if session is None else _Trace(session, raw, self._large)
        async with self._asked(request, raw, session) as reply:
            headers = _chosen(reply.headers, _PASSED_BACK)
            if trace is not None:
                headers[REPLY_HEADER] = trace.reply_id
            if reply.content_type != "text/event-stream":
                answer = await reply.read()
                if trace is not None and reply.status == 200:
                    await trace.record(answer, is_stream=False)
                return web.Response(body=answer, status=reply.status, headers=headers)
            response = web.StreamResponse(status=reply.status, headers=headers)
            await response.prepare(request)
            kept = bytearray()
            try:
                await _stream(reply, response, kept, session, _error_body(request))
            finally:  # also of a client that left: what it has seen by then may be judged
                if trace is not None:
                    await trace.record(bytes(kept), is_stream=True)
            await response.write_eof()
            return response

    @asynccontextmanager
    async def _asked(
        self, request: web.Request, raw: bytes, session: Session | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The provider's reply. What goes wrong on the way is a fault, and names no key."""
        assert self._http is not None, "the server has started"
        path = _path(request)
        headers = _chosen(request.headers, _PASSED_ON) | {"Accept-Encoding": "identity"}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
            if path.startswith("messages"):
                headers["x-api-key"] = self._api_key
        try:
            async with self._http.request(
                request.method,
                f"{self._url}/{quote(path)}",
                params=request.query,
                data=raw or None,
                headers=headers,
                allow_redirects=False,  # they would take the key elsewhere
            ) as reply:
                if reply.status in (401, 403):
                    raise _fault(session, f"the provider answered {reply.status} to our key")
                yield reply
        except TimeoutError as exc:
            raise _fault(session, "the provider did not answer in time", status=504) from exc
        except aiohttp.ClientError as exc:
            kind = type(exc).__name__
            raise _fault(session, f"the provider cannot be reached ({kind})") from exc


class _Trace:
    """One call as the session keeps it. There are no tokens: only its text can be learnt from."""

    def __init__(self, session: Session, raw: bytes, large: LargeWork) -> None:
        self.reply_id = f"reply-{secrets.token_hex(16)}"
        """Our own name for the reply, in a header: a provider's ids may repeat."""
        self._session = session
        self._raw = raw
        self._large = large
        self._began = time.monotonic()

    async def record(self, raw: bytes, *, is_stream: bool) -> None:
        """Keep the provider's answer, a turn for each choice. A closed session keeps nothing."""
        session = self._session
        async with session.placing:
            size = len(self._raw) + len(raw)
            found = await self._large.run(size, lambda: self._read(raw, is_stream=is_stream))
            if session.is_closed:
                return  # the client has its answer
            if found is None:
                session.notice(
                    "an answer of the provider could not be read, and is not in the trace"
                )
                return
            reply_id, turns = found
            if reply_id in session.turns_of_reply:
                session.repeated_replies.add(reply_id)
            for choice, turn in enumerate(turns):
                index = session.record(turn)
                session.note_reply(reply_id, index, choice=choice)
                session.note_reply(self.reply_id, index, choice=choice)

    def _read(self, raw: bytes, *, is_stream: bool) -> tuple[str, list[Turn]] | None:
        """The reply's id and its turns, which `history` knows from here on; None where none can be read."""
        answer = read_reply(raw, is_stream=is_stream)
        if answer is None:
            return None
        question, history = self._question(), self._session.history
        turns = [
            self._read_choice(history, question, answer, index)
            for index in range(len(answer.choices))
        ]
        return answer.id, turns

    def _question(self) -> UpstreamRequest:
        known, raw = self._session.body, self._raw
        try:
            if len(raw) > LARGE and known.num_new(raw) > LARGE:
                return read_request(parse_body(raw))
            body, _ = known.read(raw, parse=parse_body)
        except ApiError:  # the provider could read it
            self._session.notice("a request could not be read: the trace has its answer alone")
            return UpstreamRequest(())
        return read_request(body)

    def _read_choice(
        self, history: History, question: UpstreamRequest, answer: UpstreamReply, index: int
    ) -> Turn:
        session, choice = self._session, answer.choices[index]
        messages = question.prompt_of(index, len(answer.choices))
        placement = history.place(messages, tools=question.tools, options={})
        parent = placement.parent
        if (before := session.turns_of_reply.get(question.previous_id or "")) is not None:
            parent = max(before.values())  # the provider keeps what was said until then
        turn = Turn(
            (),
            (),
            (),
            (),
            message=choice.message,
            new_messages=messages[placement.num_matched :],
            finish_reason=choice.finish_reason,
            parent=parent,
            fork=history.reason(placement) if parent == placement.parent else None,
            duration_s=time.monotonic() - self._began,
            began_s=max(0.0, self._began - session.opened_at),
            details={
                **({"request": dict(question.asked)} if question.asked else {}),
                **({"tools": list(question.tools)} if question.tools and parent is None else {}),
                **({"usage": dict(answer.usage)} if answer.usage else {}),
            },
        )
        history.add(placement, choice.message, len(session.turns) + index)
        return turn


class _NoModel:
    """The turn sampler of a gateway without a model: it refuses every request."""

    async def complete(self, session: Session, request: ChatRequest) -> Turn:
        raise ConfigError("another provider answers here: there are no tokens to sample")


async def _stream(
    reply: aiohttp.ClientResponse,
    response: web.StreamResponse,
    kept: bytearray,
    session: Session | None,
    error_body: ErrorBody,
) -> None:
    """Pass events on as they come, and keep them. One that breaks off ends with an error event."""
    try:
        async for chunk in reply.content.iter_any():
            if len(kept) < _MOST_KEPT_BYTES:
                kept += chunk
            await response.write(chunk)
    except (aiohttp.ClientPayloadError, TimeoutError):
        error = _fault(session, "the provider broke off its answer")
        name = "error" if error_body is ApiError.anthropic_body else None
        await response.write(event(error_body(error), name=name))


def _path(request: web.Request) -> str:
    """Below `/v1`. Anthropic's SDK adds /v1 itself, also to the address that OpenAI's wants."""
    return request.match_info["path"].removeprefix("v1/")


def _is_plain(path: str) -> bool:
    """Whether no segment of the path is empty, `.` or `..`, which the provider may read differently."""
    return not any(segment in ("", ".", "..") for segment in unquote(path).split("/"))


def _touches_nothing(method: str, path: str) -> bool:
    """Whether it neither costs anything nor reads what the provider keeps, for all our users."""
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


def _chosen(headers: Mapping[str, str], prefixes: Sequence[str]) -> dict[str, str]:
    """The headers whose names begin with `prefixes`. Keys, cookies and connection headers are left out."""
    return {
        name: value for name, value in headers.items() if name.lower().startswith(tuple(prefixes))
    }


def _fault(session: Session | None, what: str, *, status: int = 502) -> ApiError:
    if session is not None:
        session.faults.append(what)
    return ApiError(status, f"{what[0].upper()}{what[1:]}.", code="upstream_error")
