"""The caller of a request, and the session in which the request speaks."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

from aiohttp import web

from areal_sdk.gateway.accounts.accounts import Account, Accounts
from areal_sdk.gateway.errors import ApiError, episode_judged
from areal_sdk.gateway.sessions.external import ExternalSessions
from areal_sdk.gateway.sessions.session import Session
from areal_sdk.gateway.sessions.store import SessionStore


@dataclass(frozen=True, slots=True)
class Caller:
    """A session that came by its own address or key; else an account, with the name that it gave to a session."""

    session: Session | None = None
    account: Account | None = None
    name: str | None = None
    key: str = ""
    """Name of the account's key."""


class Access:
    """Finds the caller of a request by its address and key. A request with neither gets a 401.

    | address | key | speaks in |
    |---|---|---|
    | `/s/<a session's own>/v1` | any, or none | that session |
    | `/v1` | a session's own | that session |
    | `/s/NAME/v1` | an account's | the account's session NAME |
    | `/v1` | an account's, then `/NAME` | the same |
    | `/v1` | an account's | a session for this request alone |
    """

    def __init__(
        self, sessions: SessionStore, external: ExternalSessions, accounts: Accounts
    ) -> None:
        self._sessions = sessions
        self._external = external
        self._accounts = accounts

    def caller(self, request: web.Request) -> Caller:
        """The caller of a request; 401 for an unknown key, 409 for a closed session."""
        slug, key = request.match_info.get("slug"), key_of(request)
        if slug is not None:
            if (session := self._sessions.by_secret(slug)) is not None:
                return Caller(session)
            if (caller := self._by_key(key, name=slug)) is not None:
                return caller
            raise ApiError(
                401,
                "This URL names no session of this server: it was of a server before, or never opened. "
                "Open a new session.",
                code="invalid_session",
            )
        if not key:
            raise ApiError(
                401,
                "No API key was given: send the key that `areal-sdk serve` printed, or a session's "
                "own, as `Authorization: Bearer KEY`; a session's own URL needs none.",
                code="invalid_api_key",
            )
        if (session := self._sessions.by_secret(key)) is not None:
            return Caller(session)
        if (caller := self._by_key(key)) is not None:
            return caller
        key, _, name = key.rpartition("/")
        if (caller := self._by_key(key, name=name)) is not None:
            return caller
        raise ApiError(
            401,
            "Incorrect API key provided: it was never made, or it was revoked. Ask the operator of this server for "
            "a key.",
            code="invalid_api_key",
        )

    def _by_key(self, key: str, *, name: str | None = None) -> Caller | None:
        holder = self._accounts.find(key)
        return None if holder is None else Caller(None, holder.account, name, holder.key)

    def is_admin(self, request: web.Request) -> bool:
        return self._accounts.by_key(key_of(request)) is self._accounts.admin

    def is_admins(self, caller: Caller) -> bool:
        """Whether the caller is the admin's account, and not a session by its own address or key."""
        return caller.account is self._accounts.admin

    def judge(self, request: web.Request) -> Caller:
        """The caller of a request that posts a reward. The session may be over and wait for its reward."""
        slug = request.match_info.get("slug")
        external = self._external.by_secret(key_of(request) if slug is None else slug)
        return Caller(external.session) if external is not None else self.caller(request)

    @contextmanager
    def sampling(self, caller: Caller) -> Iterator[Session]:
        """The session that a request samples in. If the session belongs to an account, the account is charged."""
        account, session = caller.account, caller.session
        external = None if session is None else self._external.get(session.id)
        if external is None and account is not None and caller.name is not None:
            external = self._external.named(account, caller.name, key=caller.key)
        if external is not None:
            with self._external.request(external) as session:
                yield session
        elif session is not None:
            yield session  # one of the run that this gateway serves
        else:
            assert account is not None, "a caller is a session or an account"
            with self._external.alone(account, key=caller.key) as session:
                yield session

    @contextmanager
    def reading(self, request: web.Request) -> Iterator[Session]:
        """The session that a request reads from; an empty session if the caller has none yet."""
        if (known := self._find(self.caller(request))) is not None:
            yield known
            return
        session = self._sessions.open(f"reading-{secrets.token_hex(8)}", split="live")
        try:
            yield session
        finally:
            session.close()

    @contextmanager
    def counting(self, request: web.Request) -> Iterator[Session]:
        """The session that a request reads, as `reading`. The request costs as much as a prompt, so it counts against the quota."""
        caller = self.caller(request)
        external = None if caller.session is None else self._external.get(caller.session.id)
        account = caller.account or (external.account if external is not None else None)
        with (
            account.request() if account is not None else nullcontext(),
            self.reading(request) as s,
        ):
            yield s

    def find(self, caller: Caller, reply_id: str | None = None) -> Session:
        """The session that a caller means, open or waiting for its reward.

        If there is none, raises a 409 if the episode of that session has its final reward already, else a 404.
        """
        if (session := self._find(caller, reply_id)) is not None:
            return session
        raise self._why_not(caller, reply_id)

    def _why_not(self, caller: Caller, reply_id: str | None) -> ApiError:
        account = caller.account
        assert account is not None, "a caller is a session or an account"
        if caller.name is not None:
            what, meant = "session", _own(account, caller.name)
            self._sessions.refuse_lost(meant)
        elif reply_id is not None:
            what, meant = "reply", reply_id
        else:
            return _not_found(
                "Which session? Name one: by the key KEY/NAME, by the address /s/NAME/v1, by its own "
                'key or address, or for a reward with "turn": the id of a reply.'
            )
        if self._external.judged_of(meant) is account:
            return episode_judged(f"{what} {meant!r:.100}")
        if not self._external.takes_rewards:
            return _not_found(
                f"No {what} {meant!r:.100} of yours is open. This server keeps no session that is over, "
                "nor its reward: that takes `areal-sdk serve --record` or `--learn`."
            )
        return _not_found(
            f"No {what} {meant!r:.100} of yours is open or waits for a reward: it is not known here, "
            "or it is too late (serve.reward_wait_s)."
        )

    def _find(self, caller: Caller, reply_id: str | None = None) -> Session | None:
        if caller.session is not None:
            return caller.session
        account, external = caller.account, None
        assert account is not None, "a caller is a session or an account"
        if caller.name is not None:
            external = self._external.get(_own(account, caller.name))
        elif reply_id is not None:
            external = self._external.by_reply(reply_id, account)
        return external.session if external is not None and external.account is account else None


def _own(account: Account, name: str) -> str:
    """The id of the session that `account` calls `name`."""
    return f"{account.name}/{name}"


def _not_found(message: str) -> ApiError:
    return ApiError(404, message, code="session_not_found")


def key_of(request: web.Request) -> str:
    """The key in a request's header `Authorization` or `x-api-key`; empty if both are missing."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return request.headers.get("x-api-key", "")
