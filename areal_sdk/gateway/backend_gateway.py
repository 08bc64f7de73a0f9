"""A gateway without a model: a backend answers in its place, and sessions keep the text of its answers."""

import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from areal_sdk.config import Quota
from areal_sdk.errors import ConfigError
from areal_sdk.gateway.access import Access
from areal_sdk.gateway.accounts.accounts import Accounts, User
from areal_sdk.gateway.accounts.key_log import FollowedKeys
from areal_sdk.gateway.added_routes import (
    GatewayCall,
    add_routes,
    answers_in_own_format,
)
from areal_sdk.gateway.control import ControlPlane
from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.metrics import GatewayMetrics
from areal_sdk.gateway.openapi import backend_document
from areal_sdk.gateway.processes.peers import NamedBy
from areal_sdk.gateway.sampling.request import ChatRequest, SamplingPolicy
from areal_sdk.gateway.server import HttpServer, ends_sessions
from areal_sdk.gateway.sessions.external import ExternalLimits, ExternalSessions
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.sessions.store import SessionStore
from areal_sdk.gateway.text_record import SessionTextRecord
from areal_sdk.gateway.untrusted import LargeWork
from areal_sdk.gateway.wire.http import (
    MAX_BODY_BYTES,
    ErrorBody,
    Handler,
    guarded,
    json_response,
    not_found,
)
from areal_sdk.routes import Backend, RecordedCall, Route, TextRecord, TextRequest
from areal_sdk.types import Turn


class BackendGateway:
    """Serves a backend to many sessions. There are no tokens, so nothing that is recorded can be trained on-policy."""

    def __init__(
        self,
        backend: Backend,
        *,
        model_name: str = "",
        admin_key: str | None = None,
        users: Sequence[User] = (),
        keys: FollowedKeys | None = None,
        quota: Quota | None = None,
        external: ExternalLimits | None = None,
        cors_origins: Sequence[str] = (),
        routes: Sequence[Route] = (),
        run_dir: Path | None = None,
    ) -> None:
        """`model_name` is the model for which agents of this run ask. Callers may ask for any. `routes` are those of
        packages, and `run_dir` gets the sessions of callers."""
        self.model_name = model_name
        self.admin_key = admin_key or f"sk-admin-{secrets.token_urlsafe(24)}"
        self.sessions = SessionStore(_NoModel(), sampling=SamplingPolicy(mode="respect"))
        self.external = ExternalSessions(self.sessions, limits=external)
        accounts = Accounts(users, admin_key=self.admin_key, quota=quota, keys=keys)
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
        self._backend = backend
        self._routes = [route for route in routes if route.beside_backends]
        self._run_dir = run_dir
        self._large = LargeWork()
        self._errors = GatewayMetrics().errors

    @property
    def base_url(self) -> str:
        """`http://host:port/v1`; known once started."""
        return self._server.base_url

    async def start(self, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen. Port 0 takes a free one."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.cleanup_ctx.append(self._started)
        ends_sessions(app, self.external, self.sessions)
        app.router.add_get("/health", self._guard(_health))
        app.router.add_get("/ready", self._guard(_health))
        app.router.add_get("/openapi.json", self._guard(_openapi))
        self._control.add_routes(app.router, guard=self._guard)
        answer = answers_in_own_format(self._answer, self._guard)
        for prefix in ("/v1", "/s/{slug}/v1"):
            self._control.add_own_routes(app.router, prefix, guard=self._guard)
        add_routes(
            app.router,
            self._routes,
            access=self._access,
            guard=self._guard,
            run_dir=self._run_dir,
        )
        for prefix in ("/v1", "/s/{slug}/v1"):
            app.router.add_route("*", f"{prefix}/{{path:.+}}", answer)
        app.router.add_route("*", r"/{path:[\s\S]*}", self._guard(not_found))
        await self._server.start(app, host=host, port=port)

    async def aclose(self) -> None:
        """Stop listening, give running answers a little time, end every session. Safe to call twice."""
        await self._server.aclose()
        self._large.close()

    async def _started(self, _: web.Application) -> AsyncIterator[None]:
        await self._backend.start()
        yield
        await self._backend.aclose()

    def _guard(
        self,
        handler: Handler,
        write_error: ErrorBody = ApiError.openai_body,
        *,
        named_by: NamedBy = NamedBy.CALLER,  # one process has every session
    ) -> Handler:
        return guarded(handler, errors=self._errors, error_body=write_error)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        return await self._backend.answer(_BackendCall(request, self._access, self._large))


class _BackendCall(GatewayCall, RecordedCall):
    def __init__(self, request: web.Request, access: Access, large: LargeWork) -> None:
        super().__init__(request, access)
        self._large = large

    @contextmanager
    def recording(self, raw: bytes, *, read: Callable[[Any], TextRequest]) -> Iterator[TextRecord]:
        with self._access.sampling(self._caller) as session:
            session.admit()
            yield SessionTextRecord(session, raw, read=read, large=self._large)


class _NoModel:
    """The turn sampler of a gateway without a model: it refuses every request."""

    async def complete(self, session: Session, request: ChatRequest) -> Turn:
        raise ConfigError("another provider answers here: there are no tokens to sample")


async def _health(request: web.Request) -> web.Response:
    return json_response({"status": "ok", "version": 0})


async def _openapi(request: web.Request) -> web.Response:
    return json_response(backend_document())
