"""Who a request comes from, and which session it speaks in."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from aiohttp import web

from areal_sdk.gateway.accounts import Account, Accounts
from areal_sdk.gateway.errors import ApiError
from areal_sdk.gateway.live import LiveSession, LiveSessions
from areal_sdk.gateway.session import Session
from areal_sdk.gateway.sessions import SessionStore


@dataclass(frozen=True, slots=True)
class Caller:
    """A session, by its own address or key; else an account, and the session that it named."""

    session: Session | None = None
    account: Account | None = None
    name: str | None = None


class Access:
    """Reads addresses and keys. Whoever holds neither gets a 401.

    | address | key | speaks in |
    |---|---|---|
    | `/s/<a session's own>/v1` | any, or none | that session |
    | `/v1` | a session's own | that session |
    | `/s/NAME/v1` | an account's | the account's session NAME |
    | `/v1` | an account's, then `/NAME` | the same |
    | `/v1` | an account's | a session for this request alone |
    """

    def __init__(self, sessions: SessionStore, live: LiveSessions, accounts: Accounts) -> None:
        self._sessions = sessions
        self._live = live
        self._accounts = accounts

    def caller(self, request: web.Request) -> Caller:
        """Who speaks; 401 for nobody we know, 409 for a session that is over."""
        slug, key = request.match_info.get("slug"), key_of(request)
        if slug is not None:
            if (session := self._sessions.by_secret(slug)) is not None:
                return Caller(session)
            if (account := self._accounts.by_key(key)) is not None:
                return Caller(account=account, name=slug)
            raise ApiError(401, "This URL names no session.", code="invalid_session")
        if not key:
            raise ApiError(
                401,
                "No API key was given: use the session's key, or its own URL.",
                code="invalid_api_key",
            )
        if (session := self._sessions.by_secret(key)) is not None:
            return Caller(session)
        if (account := self._accounts.by_key(key)) is not None:
            return Caller(account=account)
        key, _, name = key.rpartition("/")
        if (account := self._accounts.by_key(key)) is not None:
            return Caller(account=account, name=name)
        raise ApiError(401, "Incorrect API key provided.", code="invalid_api_key")

    def is_admin(self, request: web.Request) -> bool:
        return self._accounts.by_key(key_of(request)) is self._accounts.admin

    @contextmanager
    def sampling(self, request: web.Request) -> Iterator[Session]:
        """The session that a request samples in, on its account."""
        caller = self.caller(request)
        if (live := self._find(caller)) is not None:
            with self._live.request(live) as session:
                yield session
        elif caller.session is not None:
            yield caller.session  # one of the run that this gateway serves
        else:
            assert caller.account is not None, "a caller is a session or an account"
            with self._live.alone(caller.account) as session:
                yield session

    @contextmanager
    def reading(self, request: web.Request) -> Iterator[Session]:
        """The session that a request reads from; for an account alone, one that is empty."""
        caller = self.caller(request)
        if (known := self.known(caller)) is not None:
            yield known
            return
        session = self._sessions.open(f"reading-{secrets.token_hex(8)}", split="live")
        try:
            yield session
        finally:
            session.close()

    def known(self, caller: Caller) -> Session | None:
        """The session that a caller means; None for an account that names none."""
        live = self._find(caller)
        return live.session if live is not None else caller.session

    def to_judge(self, request: web.Request, reply_id: str | None) -> Session:
        """The session that a reward is for: also one that is over, and waits for it."""
        slug, key = request.match_info.get("slug"), key_of(request)
        if (live := self._live.by_secret(slug if slug is not None else key)) is not None:
            return live.session
        caller = self.caller(request)
        if caller.session is not None:
            return caller.session
        if (live := self._waiting(caller, reply_id)) is not None:
            return live.session
        raise ApiError(
            404,
            "No session waits for this reward. Name one: by its own key or address, by its name, "
            'or with "turn": the id of a reply. It may be over, or it is too late.',
            code="session_not_found",
        )

    def _find(self, caller: Caller) -> LiveSession | None:
        if caller.session is not None:
            return self._live.get(caller.session.id)
        if caller.account is not None and caller.name is not None:
            return self._live.named(caller.account, caller.name)
        return None

    def _waiting(self, caller: Caller, reply_id: str | None) -> LiveSession | None:
        account = caller.account
        assert account is not None, "a caller is a session or an account"
        if caller.name is not None:
            live = self._live.get(f"{account.name}/{caller.name}")
            return live if live is not None and live.account is account else None
        return self._live.by_reply(account, reply_id) if reply_id is not None else None


def key_of(request: web.Request) -> str:
    """The key that a request carries, by either header; empty without one."""
    scheme, _, key = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key:
        return key.strip()
    return request.headers.get("x-api-key", "")
