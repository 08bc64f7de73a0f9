"""The gateway: an HTTP server with OpenAI's interface that records the policy's turns."""

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from aiohttp import web

from areal_sdk.config import Quota
from areal_sdk.engine import InferenceEngine
from areal_sdk.gateway.access import Access
from areal_sdk.gateway.accounts.accounts import Accounts, User
from areal_sdk.gateway.accounts.key_log import FollowedKeys
from areal_sdk.gateway.added_routes import add_routes
from areal_sdk.gateway.control import ControlPlane
from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.metrics import GatewayMetrics
from areal_sdk.gateway.model import ModelPlane
from areal_sdk.gateway.openapi import openapi_document
from areal_sdk.gateway.processes.membership import Membership, SharedFiles
from areal_sdk.gateway.processes.peers import NamedBy, Peers, is_from_peer
from areal_sdk.gateway.sampling.completer import Completer
from areal_sdk.gateway.sampling.model_names import Arms
from areal_sdk.gateway.sampling.request import SamplingPolicy
from areal_sdk.gateway.server import HttpServer, ends_sessions
from areal_sdk.gateway.sessions.external import ExternalLimits, ExternalSessions
from areal_sdk.gateway.sessions.store import SessionStore
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.gateway.wire.http import (
    ErrorBody,
    Handler,
    body_limit,
    guarded,
    json_response,
    not_found,
)
from areal_sdk.routes import Route

COUNTS_PATH = "/peer/counts"
"""The path at which the other processes of the server ask this one for its counts."""


class Gateway:
    """Serves one engine to many sessions.

    >>> renderer = Renderer.load(model_dir)                                # doctest: +SKIP
    >>> gateway = Gateway(engine, renderer=renderer, model_name="smollm2") # doctest: +SKIP
    >>> await gateway.start()                                              # doctest: +SKIP
    >>> session = gateway.sessions.open("episode-1")                       # doctest: +SKIP
    >>> session.base_url(gateway.base_url), session.key                    # doctest: +SKIP
    """

    def __init__(
        self,
        engine: InferenceEngine,
        *,
        renderer: Renderer,
        model_name: str,
        sampling: SamplingPolicy | None = None,
        admin_key: str | None = None,
        max_request_s: float = 600.0,
        users: Sequence[User] = (),
        keys: FollowedKeys | None = None,
        quota: Quota | None = None,
        external: ExternalLimits | None = None,
        cors_origins: Sequence[str] = (),
        unknown_fields: Literal["refuse", "note"] = "refuse",
        membership: Membership | None = None,
        routes: Sequence[Route] = (),
        run_dir: Path | None = None,
        model_names: Mapping[str, Arms] | None = None,
    ) -> None:
        """`users`, `keys` and `external` are for callers from outside; `quota` is that of the admin key, and of users
        who have no quota of their own.

        `unknown_fields` says whether a request with fields that cannot be honoured is refused, or answered without them
        and with a notice. `membership` is given if several processes serve at one address. `routes` are those of
        packages, and `run_dir` gets the sessions of callers. `model_names` name one policy or several each.
        """
        tokenizer = renderer.tokenizer
        completer = Completer(
            engine, tokenizer, renderer, max_request_s=max_request_s, names=model_names
        )
        self._completer = completer
        self._metrics = completer.metrics
        self._body_limit = body_limit(completer.max_context, tokenizer.most_characters_a_token)
        self.admin_key = admin_key or f"sk-admin-{secrets.token_urlsafe(24)}"
        self.model_name = model_name
        self._routes = routes
        self._run_dir = run_dir
        self._membership = membership
        self._shared = None if membership is None else SharedFiles(membership)
        self.sessions = SessionStore(
            completer,
            sampling=sampling or SamplingPolicy(),
            shard=membership.shard if membership is not None else None,
            claims=self._shared.claims if self._shared is not None else None,
        )
        self.external = ExternalSessions(self.sessions, limits=external)
        """The sessions of callers; those of a run's own agents are in `sessions` alone."""
        accounts = Accounts(
            users,
            admin_key=self.admin_key,
            quota=quota,
            usage=self._shared.usage if self._shared is not None else None,
            keys=keys,
        )
        if membership is not None:
            membership.shard.users = accounts.names
        self._peers = Peers(membership, accounts) if membership is not None else None
        self._access = Access(self.sessions, self.external, accounts)
        self._server = HttpServer(has_given_key=admin_key is not None, cors_origins=cors_origins)
        self._engine = engine
        self._model = ModelPlane(
            completer, self._access, model_name=model_name, lenient=unknown_fields == "note"
        )
        self._control = ControlPlane(
            self.sessions,
            self.external,
            engine,
            access=self._access,
            accounts=accounts,
            base_url=lambda: self.base_url,
            peers=self._peers,
        )

    @property
    def calls(self) -> dict[str, int]:
        """The number of calls that the engine answers at this moment, and of calls that it has answered."""
        return {"asked": self._metrics.num_running, "answered": self._metrics.num_turns}

    @property
    def base_url(self) -> str:
        """`http://host:port/v1`; known once started."""
        return self._server.base_url

    async def start(self, *, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen. Port 0 takes a free one."""
        unix_path = door = None
        if self._membership is not None:
            number = self._membership.shard.number
            unix_path, door = self._membership.socket_of(number), self._membership.door_of(number)
        await self._server.start(
            self._application(), host=host, port=port, unix_path=unix_path, door=door
        )

    async def aclose(self) -> None:
        """Stop listening, give running answers a little time, close every session. Safe to call twice."""
        await self._server.aclose()
        self.sessions.close_all()  # of a gateway that never listened
        self._completer.close()
        if self._peers is not None:
            self._peers.close()
        shared, self._shared = self._shared, None
        if shared is not None:
            shared.close()

    def _application(self) -> web.Application:
        app = web.Application(client_max_size=self._body_limit)
        ends_sessions(app, self.external, self.sessions)
        app.router.add_get("/health", self._health)
        app.router.add_get("/ready", self._health)
        app.router.add_get("/metrics", self._guard(self._get_metrics))
        if self._peers is not None:
            app.router.add_get(COUNTS_PATH, self._guard(self._get_own_counts))
        self._control.add_routes(app.router, guard=self._guard)
        for prefix in ("/v1", "/s/{slug}/v1"):
            self._control.add_own_routes(app.router, prefix, guard=self._guard)
        app.router.add_get("/openapi.json", self._guard(self._get_openapi))
        for prefix in ("/v1", "/s/{slug}/v1"):
            self._model.add_routes(app.router, prefix, guard=self._guard)
        add_routes(
            app.router,
            self._routes,
            access=self._access,
            guard=self._guard,
            run_dir=self._run_dir,
        )
        app.router.add_route("*", r"/{path:[\s\S]*}", self._guard(not_found))
        return app

    def _guard(
        self,
        handler: Handler,
        write_error: ErrorBody = ApiError.openai_body,
        *,
        named_by: NamedBy = NamedBy.CALLER,
    ) -> Handler:
        if self._peers is not None:
            handler = self._peers.reaching_owner(handler, named_by)
        return guarded(handler, errors=self._metrics.errors, error_body=write_error)

    async def _get_openapi(self, request: web.Request) -> web.Response:
        return json_response(openapi_document())

    async def _health(self, request: web.Request) -> web.Response:
        return json_response({"status": "ok", "version": self._engine.version})

    async def _get_metrics(self, request: web.Request) -> web.Response:
        if not (self._server.is_loopback or self._access.is_admin(request)):
            raise ApiError(
                401,
                "Where others reach this server its metrics need the admin key, as "
                "`Authorization: Bearer KEY` (in Prometheus: authorization.credentials).",
                code="invalid_api_key",
            )
        metrics, num_sessions = self._metrics, len(self.sessions)
        if self._peers is not None:
            metrics = GatewayMetrics()
            metrics.add(self._metrics.to_json())
            for theirs in await self._peers.ask_all(COUNTS_PATH):
                metrics.add(theirs["counts"])
                num_sessions += theirs["num_sessions"]
        text = metrics.render(num_sessions, self._engine.version)
        return web.Response(text=text, content_type="text/plain")

    async def _get_own_counts(self, request: web.Request) -> web.StreamResponse:
        """The counts of this process, for another process that was asked for the counts of all."""
        if not is_from_peer(request):
            return await not_found(request)
        counts = self._metrics.to_json()
        return json_response({"counts": counts, "num_sessions": len(self.sessions)})
