"""The control plane: sessions, rewards, traces and the engine, for whoever holds the admin key."""

import secrets
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from aiohttp import web

from areal_sdk.engine import InferenceEngine
from areal_sdk.gateway.errors import ApiError, bad_request
from areal_sdk.gateway.request import SamplingPolicy
from areal_sdk.gateway.session import Session, SessionLimits
from areal_sdk.gateway.sessions import SessionStore
from areal_sdk.gateway.wire.fields import Fields, require
from areal_sdk.gateway.wire.http import Handler, json_response, parse_body, read_body

_LARGEST_GROUP = 1024


class ControlPlane:
    """Opens, reads and closes sessions over HTTP, and holds the engine."""

    def __init__(
        self, sessions: SessionStore, engine: InferenceEngine, *, base_url: Callable[[], str]
    ) -> None:
        self._sessions = sessions
        self._engine = engine
        self._base_url = base_url

    def add_routes(self, router: web.UrlDispatcher, *, guard: Callable[[Handler], Handler]) -> None:
        one = "/control/sessions/{id:.+}"
        router.add_post("/control/sessions", guard(self._open))
        router.add_get("/control/sessions", guard(self._list))
        router.add_post(f"{one}/reward", guard(self._reward))
        router.add_get(one, guard(self._trace))
        router.add_delete(one, guard(self._close))
        router.add_get("/control/weights", guard(self._weights))
        router.add_post("/control/pause", guard(self._pause))
        router.add_post("/control/resume", guard(self._resume))

    async def _open(self, request: web.Request) -> web.Response:
        """One session, or a group of siblings."""
        raw = await read_body(request)
        fields = Fields(parse_body(raw) if raw else {})
        name = fields.text("id") or f"live-{secrets.token_hex(8)}"
        size = fields.integer("group_size", least=1, most=_LARGEST_GROUP)
        options: dict[str, Any] = {
            "limits": _parse_limits(fields),
            "sampling": _parse_sampling(fields),
            "seed": fields.integer("seed", least=0, most=2**63 - 1),
            "split": fields.choice("split", ("train", "eval", "live")) or "live",
        }
        fields.refuse_unknown()
        names = [name] if size is None else [f"{name}/{i}" for i in range(size)]
        taken = next((n for n in names if self._sessions.get(n) is not None), None)
        if taken is not None:
            raise ApiError(409, f"Session {taken!r} is open already.", code="session_exists")
        sessions = [self._sessions.open(n, **options) for n in names]
        return json_response({"sessions": [self._address(s) for s in sessions]}, status=201)

    def _address(self, session: Session) -> dict[str, Any]:
        return {
            "id": session.id,
            "base_url": session.base_url(self._base_url()),
            "api_key": session.key,
        }

    async def _list(self, request: web.Request) -> web.Response:
        return json_response({"sessions": [_summary(session) for session in self._sessions]})

    async def _trace(self, request: web.Request) -> web.Response:
        return json_response(_trace(self._session(request)))

    async def _close(self, request: web.Request) -> web.Response:
        session = self._session(request)
        session.close()
        return json_response(_trace(session))

    async def _reward(self, request: web.Request) -> web.Response:
        return await take_reward(request, self._session(request))

    async def _weights(self, request: web.Request) -> web.Response:
        return json_response({"version": self._engine.version})

    async def _pause(self, request: web.Request) -> web.Response:
        await self._engine.pause()
        return json_response({"paused": True})

    async def _resume(self, request: web.Request) -> web.Response:
        await self._engine.resume()
        return json_response({"paused": False})

    def _session(self, request: web.Request) -> Session:
        name = request.match_info["id"]
        session = self._sessions.get(name)
        if session is None:
            raise ApiError(404, f"No session {name!r} is open.", code="session_not_found")
        return session


async def take_reward(request: web.Request, session: Session) -> web.Response:
    """Record the reward that a request carries."""
    fields = Fields(parse_body(await read_body(request)))
    reward = require(fields.number("reward", least=float("-inf")), "reward")
    turn = fields.get("turn")
    if isinstance(turn, bool) or not isinstance(turn, (int, str, type(None))):
        raise bad_request("turn must be a turn's index or a reply's id", param="turn")
    fields.refuse_unknown()
    posted = session.post_reward(reward, turn=turn)
    return json_response({"id": session.id, **asdict(posted)})


def _parse_limits(fields: Fields) -> SessionLimits:
    given = Fields(fields.mapping("limits") or {})
    limits = SessionLimits(
        max_turns=given.integer("max_turns", least=1),
        max_tokens=given.integer("max_tokens", least=1),
        max_new_tokens=given.integer("max_new_tokens", least=1),
    )
    given.refuse_unknown()
    return limits


def _parse_sampling(fields: Fields) -> SamplingPolicy | None:
    given = fields.mapping("sampling")
    if given is None:
        return None
    options = Fields(given)
    mode = options.choice("mode", ("override", "respect")) or "override"
    temperature = options.number("temperature", least=0.0, most=2.0)
    options.refuse_unknown()
    return SamplingPolicy(
        mode="respect" if mode == "respect" else "override",
        temperature=1.0 if temperature is None else temperature,
    )


def _summary(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "split": session.split,
        "num_turns": len(session.turns),
        "num_sampled_tokens": session.num_sampled,
        "truncated": session.truncated,
        "faults": session.faults,
    }


def _trace(session: Session) -> dict[str, Any]:
    """Everything that is known of a session: its turns in tokens, its verdicts, its notices."""
    return {
        **_summary(session),
        "notices": session.notices,
        "excluded_tokens": dict(session.excluded),
        "rewards": [asdict(reward) for reward in session.rewards],
        "turns": [asdict(turn) for turn in session.turns],
    }
