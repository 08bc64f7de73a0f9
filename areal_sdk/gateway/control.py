"""The control plane: sessions, rewards, traces and the engine, for the holder of the admin key."""

import asyncio
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any

from aiohttp import web

from areal_sdk.engine import InferenceEngine
from areal_sdk.gateway.access import Access, key_of
from areal_sdk.gateway.accounts.accounts import ADMIN, Accounts
from areal_sdk.gateway.errors import ApiError, bad_request, episode_judged, session_closed
from areal_sdk.gateway.processes.peers import Guard, NamedBy, Peers, is_from_peer
from areal_sdk.gateway.sampling.request import SamplingPolicy
from areal_sdk.gateway.sessions.external import Ending, ExternalSession, ExternalSessions
from areal_sdk.gateway.sessions.posted_rewards import LARGEST_REWARD, PostedReward
from areal_sdk.gateway.sessions.session import Session, SessionLimits
from areal_sdk.gateway.sessions.store import SessionStore
from areal_sdk.gateway.wire.fields import Fields, require
from areal_sdk.gateway.wire.http import Handler, json_response, parse_body, read_body
from areal_sdk.types import Turn

_LARGEST_GROUP = 1024
_REPLY_WAIT_S = 2.0
"""Seconds that a reward waits for the reply that it names, which may not be recorded yet."""


class ControlPlane:
    """Opens, reads and closes sessions over HTTP, and pauses the engine."""

    def __init__(
        self,
        sessions: SessionStore,
        external: ExternalSessions,
        engine: InferenceEngine | None,
        *,
        access: Access,
        accounts: Accounts,
        base_url: Callable[[], str],
        peers: Peers | None = None,
    ) -> None:
        self._sessions = sessions
        self._external = external
        self._engine = engine
        self._access = access
        self._accounts = accounts
        self._base_url = base_url
        self._peers = peers

    def add_routes(self, router: web.UrlDispatcher, *, guard: Guard) -> None:
        """Add the routes that need the admin key."""

        def admin(handler: Handler, named_by: NamedBy = NamedBy.CALLER) -> Handler:
            return guard(self._admin_only(handler), named_by=named_by)

        one = "/control/sessions/{id:.+}"
        router.add_post("/control/sessions", admin(self._open, NamedBy.BODY))
        router.add_get("/control/sessions", admin(self._list))
        router.add_post(f"{one}/reward", admin(self._reward, NamedBy.PATH))
        router.add_get(one, admin(self._trace, NamedBy.PATH))
        router.add_delete(one, admin(self._close, NamedBy.PATH))
        if self._engine is not None:
            engine = EngineControl(self._engine)
            router.add_get("/control/weights", admin(engine.weights))
            router.add_post("/control/pause", admin(engine.pause))
            router.add_post("/control/resume", admin(engine.resume))

    def add_own_routes(self, router: web.UrlDispatcher, prefix: str, *, guard: Guard) -> None:
        """Add the routes by which callers reward and end their own sessions."""
        router.add_post(f"{prefix}/reward", guard(self._reward_own, named_by=NamedBy.REPLY))
        router.add_post(f"{prefix}/end", guard(self._end_own))

    def _admin_only(self, handler: Handler) -> Handler:
        async def authorised(request: web.Request) -> web.StreamResponse:
            if not self._access.is_admin(request):
                raise ApiError(401, "This needs the admin key.", code="invalid_api_key")
            return await handler(request)

        return authorised

    async def _open(self, request: web.Request) -> web.Response:
        """Open one session, or a group of siblings."""
        raw = await read_body(request)
        fields = Fields(parse_body(raw) if raw else {})
        shard = self._sessions.shard
        name = fields.text("id") or shard.new_session_id("live-")
        size = fields.integer("group_size", least=1, most=_LARGEST_GROUP)
        account = self._accounts.by_name(fields.text("user") or ADMIN)
        if account is None:
            raise bad_request(f"user {fields.get('user')!r} is not known here", param="user")
        options: dict[str, Any] = {
            "limits": _parse_limits(fields),
            "sampling": _parse_sampling(fields, self._sessions.sampling),
            "seed": fields.integer("seed", least=0, most=2**63 - 1),
            "split": fields.choice("split", ("train", "eval", "live")) or "live",
        }
        fields.refuse_unknown()
        self._check_group(size)
        if size is not None and not shard.is_alone and shard.is_name_of_user(name):
            raise bad_request(
                f"{name!r} is the name of a user: with serve.processes, a group needs another id",
                param="id",
            )
        names = [name] if size is None else [f"{name}/{i}" for i in range(size)]
        taken = next((n for n in names if self._is_taken(n)), None)
        if taken is not None:
            raise ApiError(409, f"Session {taken!r} is open already.", code="session_exists")
        account.open_sessions(len(names))
        group = "" if size is None else name
        opened = [
            self._external.open(
                account,
                n,
                group=group,
                group_size=len(names),
                sibling=sibling,
                is_counted=True,
                **options,
            )
            for sibling, n in enumerate(names)
        ]
        return json_response({"sessions": [self._address(s.session) for s in opened]}, status=201)

    def _check_group(self, size: int | None) -> None:
        wanted = self._external.limits.group_size
        if wanted is not None and size is not None and size != wanted:
            raise bad_request(
                f"this server learns from groups of {wanted} (rollout.group_size)",
                param="group_size",
            )

    def _is_taken(self, name: str) -> bool:
        return self._find(name) is not None

    def _address(self, session: Session) -> dict[str, Any]:
        return {
            "id": session.id,
            "base_url": session.base_url(self._base_url()),
            "api_key": session.key,
        }

    async def _list(self, request: web.Request) -> web.Response:
        """Summaries of the open sessions, and of those that wait for their reward."""
        waiting = [external.session for external in self._external if external.ended is not None]
        sessions = [*self._sessions, *waiting]
        listed = [self._summary(session) for session in sessions]
        if self._peers is not None and not is_from_peer(request):
            for theirs in await self._peers.ask_all("/control/sessions", key=key_of(request)):
                listed += theirs["sessions"]
        return json_response({"sessions": listed})

    async def _trace(self, request: web.Request) -> web.Response:
        return json_response(self._whole(self._session(request)))

    async def _close(self, request: web.Request) -> web.Response:
        session = self._session(request)
        self._end(session)
        return json_response(self._whole(session))

    async def _reward(self, request: web.Request) -> web.Response:
        fields = await _reward_fields(request)
        name = request.match_info["id"]
        if self._find(name) is None and self._external.judged_of(name) is not None:
            raise episode_judged(f"session {name!r:.100}")
        session = self._session(request)
        await _reply_over(session, fields.get("turn"))
        return self._judge(session, fields)

    async def _reward_own(self, request: web.Request) -> web.Response:
        caller = self._access.judge(request)  # before its body is read
        fields = await _reward_fields(request)
        turn = fields.get("turn")
        session = self._access.find(caller, turn if isinstance(turn, str) else None)
        await _reply_over(session, turn)
        return self._judge(session, fields)

    async def _end_own(self, request: web.Request) -> web.Response:
        session = self._access.find(self._access.judge(request))
        self._end(session)
        return json_response(self._summary(session))

    def _judge(self, session: Session, fields: Fields) -> web.Response:
        reward = require(
            fields.number("reward", least=-LARGEST_REWARD, most=LARGEST_REWARD), "reward"
        )
        turn = fields.get("turn")
        if isinstance(turn, bool) or not isinstance(turn, (int, str, type(None))):
            raise bad_request("turn must be a turn's index or a reply's id", param="turn")
        choice = fields.integer("choice", least=0)
        fields.refuse_unknown()
        external = self._external.get(session.id)
        posted: PostedReward
        if external is not None:
            posted = self._external.reward(external, reward, turn=turn, choice=choice)
        elif session.is_closed:
            raise session_closed()
        else:
            posted = session.post_reward(reward, turn=turn, choice=choice)
        return json_response({"id": session.id, **asdict(posted)})

    def _end(self, session: Session) -> None:
        external = self._external.get(session.id)
        if external is not None:
            self._external.end(external, Ending.CLIENT)
        else:
            session.close()

    def _session(self, request: web.Request) -> Session:
        name = request.match_info["id"]
        if (session := self._find(name)) is None:
            self._sessions.refuse_lost(name)
            raise ApiError(404, f"No session {name!r} is open.", code="session_not_found")
        return session

    def _find(self, name: str) -> Session | None:
        """A session that is open, or waits for its reward."""
        if (session := self._sessions.get(name)) is not None:
            return session
        external = self._external.get(name)
        return None if external is None else external.session

    def _summary(self, session: Session) -> dict[str, Any]:
        return _summary(session, self._external.get(session.id))

    def _whole(self, session: Session) -> dict[str, Any]:
        return _trace(session, self._external.get(session.id))


class EngineControl:
    """The part of an engine that the control plane uses: its version, its pause and its going on."""

    def __init__(self, engine: InferenceEngine) -> None:
        self._engine = engine

    async def weights(self, request: web.Request) -> web.Response:
        return json_response({"version": self._engine.version})

    async def pause(self, request: web.Request) -> web.Response:
        await self._engine.pause()
        return json_response({"paused": True})

    async def resume(self, request: web.Request) -> web.Response:
        await self._engine.resume()
        return json_response({"paused": False})


async def _reward_fields(request: web.Request) -> Fields:
    return Fields(parse_body(await read_body(request)))


async def _reply_over(session: Session, turn: Any) -> None:
    """Wait until a reply is no longer streamed. Its client may have just left, or have all of it but the end."""
    over = session.replies.end_of_stream(turn) if isinstance(turn, str) else None
    if over is None:
        return
    try:
        async with asyncio.timeout(_REPLY_WAIT_S):
            await over.wait()
    except TimeoutError as exc:
        raise ApiError(
            409,
            f"Reply {turn!r:.100} is still being sampled: reward it when it is over.",
            code="reply_in_progress",
            retry=True,
            retry_after_s=1.0,
        ) from exc


def _parse_limits(fields: Fields) -> SessionLimits | None:
    mapping = fields.mapping("limits")
    if mapping is None:
        return None
    given = Fields(mapping)
    limits = SessionLimits(
        max_turns=given.integer("max_turns", least=1),
        max_tokens=given.integer("max_tokens", least=1),
        max_new_tokens=given.integer("max_new_tokens", least=1),
    )
    given.refuse_unknown()
    return limits


def _parse_sampling(fields: Fields, own: SamplingPolicy) -> SamplingPolicy | None:
    """The sampling settings that a request asks for its session. The other settings are those of `own`, the
    server's."""
    given = fields.mapping("sampling")
    if given is None:
        return None
    options = Fields(given)
    mode = options.choice("mode", ("override", "respect")) or "override"
    temperature = options.number("temperature", least=0.0, most=2.0)
    options.refuse_unknown()
    return replace(
        own,
        mode="respect" if mode == "respect" else "override",
        temperature=1.0 if temperature is None else temperature,
    )


def _summary(session: Session, external: ExternalSession | None) -> dict[str, Any]:
    return {
        "id": session.id,
        "user": external.account.name if external is not None else None,
        "split": session.split,
        "num_turns": len(session.turns),
        "num_sampled_tokens": session.num_sampled,
        "truncated": session.truncated,
        "closed": session.is_closed,
        "faults": list(session.faults),
    }


def _trace(session: Session, external: ExternalSession | None) -> dict[str, Any]:
    """The whole record of a session: its turns in tokens, its verdicts, its notices."""
    return {
        **_summary(session, external),
        "notices": list(session.notices),
        "metadata": dict(session.metadata),
        "excluded_tokens": {str(reason): number for reason, number in session.excluded.items()},
        "rewards": [asdict(reward) for reward in session.rewards],
        "turns": [_turn(turn) for turn in session.turns],
    }


def _turn(turn: Turn) -> dict[str, Any]:
    known = {field.name: getattr(turn, field.name) for field in fields(turn)}
    for name in ("_before", "new_tokens", "num_shared", "shares_with"):
        del known[name]
    return {**known, "prompt_tokens": turn.prompt_tokens}
