"""Live sessions: opened by whoever calls, ended by them or by time, rewarded then or later.

    open -> takes turns -> ended (by its client, a reward, silence) -> rewarded, or nobody did in time

Somebody who observes is told when a session opens and when nothing more can change about it.
"""

import asyncio
import re
import secrets
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from areal_sdk.gateway.errors import ApiError, bad_request, session_closed
from areal_sdk.gateway.sessions.accounts import Account
from areal_sdk.gateway.sessions.keyring import Keyring
from areal_sdk.gateway.sessions.session import PostedReward, Session, SessionLimits
from areal_sdk.gateway.sessions.store import SessionStore

SPLIT = "live"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

_REMEMBERED_NAMES = 10_000
_REMEMBERED_VERDICTS = 10_000


class Ending(StrEnum):
    """What ended a live session."""

    CLIENT = "client"
    REWARD = "reward"
    REQUEST = "request"
    """It was opened for one request, which is answered."""
    IDLE = "idle"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class LiveLimits:
    """How long live sessions last, and what each may use."""

    idle_s: float | None = None
    """Without a request for so long a session ends."""
    reward_wait_s: float = 600.0
    """After its end, how long a reward may still come."""
    session: SessionLimits = field(default_factory=SessionLimits)
    group_size: int | None = None
    """Siblings that every group must have, where somebody learns from groups."""
    keeps_rewards: bool = True
    """Off: nobody will ever learn from the sessions that callers name, or write them down."""


@dataclass(slots=True, eq=False)
class LiveSession:
    """One caller's episode."""

    session: Session
    account: Account
    group: str = ""
    """Id that siblings share; empty for a session that was opened alone."""
    group_size: int = 1
    sibling: int = 0
    is_named: bool = False
    """Its caller chose its name, and may not use it twice."""
    began_at: float = 0.0
    used_at: float = 0.0
    num_running: int = 0
    """Requests in flight."""
    ended: Ending | None = None
    is_finished: bool = False
    num_charged: int = 0
    """Sampled tokens that its account has paid for."""
    timer: asyncio.TimerHandle | None = None

    @property
    def id(self) -> str:
        return self.session.id

    @property
    def is_judged(self) -> bool:
        """Whether the episode has its reward, or each of its turns has one."""
        given = {posted.turn for posted in self.session.rewards}
        return None in given or given.issuperset(range(len(self.session.turns)))


class ObservesSessions(Protocol):
    """Whoever records live sessions, or learns from them."""

    def opened(self, live: LiveSession) -> None: ...

    def finished(self, live: LiveSession) -> None:
        """It takes no more turns, and no more rewards."""


class LiveSessions:
    """The sessions of callers. One that nobody observes is forgotten when it ends."""

    def __init__(
        self,
        sessions: SessionStore,
        *,
        limits: LiveLimits | None = None,
    ) -> None:
        self._sessions = sessions
        self.limits = limits or LiveLimits()
        self._observer: ObservesSessions | None = None
        self._by_id: dict[str, LiveSession] = {}
        self._by_secret: Keyring[LiveSession] = Keyring()
        self._by_reply: dict[str, tuple[LiveSession, ...]] = {}
        """Several where another provider gives several replies one id."""
        self._running_now: set[LiveSession] = set()
        self._waiting: dict[Account, OrderedDict[str, LiveSession]] = {}
        """Ended, without a verdict yet; longest ended first."""
        self._used_names: OrderedDict[str, None] = OrderedDict()
        self._judged: OrderedDict[str, Account] = OrderedDict()
        """Sessions and replies whose episode is over and has its reward, and whose they were."""

    def observe(self, observer: ObservesSessions | None) -> None:
        """Tell `observer` of every session from now on, those that are open among them."""
        self._observer = observer
        for live in self:
            if observer is not None and live.ended is None:
                observer.opened(live)

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(list(self._by_id.values()))

    def get(self, session_id: str) -> LiveSession | None:
        """A session that is open, or waits for its reward."""
        return self._by_id.get(session_id)

    def by_secret(self, secret: str) -> LiveSession | None:
        return self._by_secret.find(secret)

    def by_reply(self, reply_id: str, account: Account) -> LiveSession | None:
        """The session of `account` that gave that reply; ids are known to more than its caller."""
        found = [live for live in self._by_reply.get(reply_id, ()) if live.account is account]
        if not found:
            found = [
                live
                for live in self._running_now
                if live.account is account and live.session.gave(reply_id)
            ]
        if len(found) > 1:
            raise bad_request(
                f"the provider gave the id {reply_id!r:.100} to replies of {len(found)} sessions: name "
                "the session, or the reply by its header x-areal-reply",
                param="turn",
            )
        return found[0] if found else None

    @property
    def is_observed(self) -> bool:
        """Whether anybody wants rewards: else a session is forgotten as it ends."""
        return self._observer is not None

    def was_judged(self, account: Account, what: str) -> bool:
        """Whether that session or reply of `account` is of an episode that got its reward."""
        return self._judged.get(what) is account

    def open(
        self,
        account: Account,
        session_id: str,
        *,
        group: str = "",
        group_size: int = 1,
        sibling: int = 0,
        is_named: bool = False,
        limits: SessionLimits | None = None,
        split: str = SPLIT,
        **options: Any,
    ) -> LiveSession:
        """A new session of `account`; 429 where its quota has no room for one."""
        account.admit_sessions()
        session = self._sessions.open(
            session_id, limits=limits or self.limits.session, split=split, **options
        )
        now = _now()
        live = LiveSession(
            session,
            account,
            group=group,
            group_size=group_size,
            sibling=sibling,
            is_named=is_named,
            began_at=now,
            used_at=now,
        )
        account.num_open += 1
        self._by_id[live.id] = live
        for secret in (session.key, session.slug):
            self._by_secret.add(secret, live)
        if self.limits.idle_s is not None:
            live.timer = _later(self.limits.idle_s, self._end_if_idle, live)
        if self._observer is not None:
            self._observer.opened(live)
        return live

    def named(self, account: Account, name: str) -> LiveSession:
        """The session that `account` calls `name`, opened on its first use. A name serves once."""
        if not _NAME.fullmatch(name):
            raise bad_request(
                "a session's name has up to 128 letters, digits, '.', '_' and '-'", param="session"
            )
        session_id = f"{account.name}/{name}"
        live = self._by_id.get(session_id)
        if session_id in self._used_names or (live is not None and live.ended is not None):
            raise session_closed()
        if live is not None and live.account is account:
            return live
        if live is not None or self._sessions.get(session_id) is not None:
            raise ApiError(409, f"Session {session_id!r} is another's.", code="session_exists")
        return self.open(account, session_id, is_named=True)

    @contextmanager
    def request(self, live: LiveSession) -> Iterator[Session]:
        """One request that samples in a session, on its account."""
        with live.account.request(), self._running(live):
            yield live.session

    @contextmanager
    def alone(self, account: Account) -> Iterator[Session]:
        """A session for one request: an episode of one turn, rewarded by its reply's id."""
        with account.request():  # before it opens: what is refused is no episode
            live = self.open(account, f"{account.name}-{secrets.token_hex(8)}")
            try:
                with self._running(live):
                    yield live.session
            finally:
                self.end(live, Ending.REQUEST)

    def reward(
        self,
        live: LiveSession,
        reward: float,
        *,
        turn: int | str | None = None,
        choice: int | None = None,
    ) -> PostedReward:
        """Keep a verdict. One on the episode ends it, if anybody learns from it.

        A session that was opened through the control plane has a trace, which shows its verdicts.
        """
        if live.is_named and not self.limits.keeps_rewards:
            raise ApiError(
                409,
                "This server keeps no rewards: start it with `areal-sdk serve --record` to keep them, or "
                "with `--learn` to train on them.",
                code="rewards_not_kept",
                retry=False,
            )
        posted = live.session.post_reward(reward, turn=turn, choice=choice)
        if self._observer is not None:
            if posted.turn is None:
                self.end(live, Ending.REWARD)
            self._finish_if_judged(live)
        return posted

    def end(self, live: LiveSession, why: Ending) -> None:
        """No more turns. Safe to call twice."""
        if live.ended is not None:
            return
        live.ended = why
        live.session.close(keeps_streams=why is not Ending.SHUTDOWN)
        self._index_replies(live)  # those among them whose clients left
        live.account.num_open -= 1
        _cancel(live)
        if self._observer is None or not live.session.turns or why is Ending.SHUTDOWN:
            self._finish(live)
            return
        waiting = self._waiting.setdefault(live.account, OrderedDict())
        waiting[live.id] = live
        live.timer = _later(self.limits.reward_wait_s, self._finish, live)
        self._finish_if_judged(live)
        if len(waiting) > live.account.quota.max_sessions:
            self._finish(next(iter(waiting.values())))  # it has waited longest

    def close_all(self) -> None:
        """End everything, wait for nothing."""
        for live in self:
            self.end(live, Ending.SHUTDOWN)
            self._finish(live)

    def _end_if_idle(self, live: LiveSession) -> None:
        assert self.limits.idle_s is not None, "only then a timer is set"
        silent_s = 0.0 if live.num_running else _now() - live.used_at
        if silent_s >= self.limits.idle_s:
            self.end(live, Ending.IDLE)
        else:
            live.timer = _later(self.limits.idle_s - silent_s, self._end_if_idle, live)

    def _finish_if_judged(self, live: LiveSession) -> None:
        if live.ended is not None and live.is_judged:
            self._finish(live)

    def _finish(self, live: LiveSession) -> None:
        if live.is_finished:
            return
        live.is_finished = True
        _cancel(live)
        del self._by_id[live.id]
        for secret in (live.session.key, live.session.slug):
            self._by_secret.remove(secret)
        for reply_id in live.session.turns_of_reply:
            others = tuple(known for known in self._by_reply.pop(reply_id, ()) if known is not live)
            if others:
                self._by_reply[reply_id] = others
        if waiting := self._waiting.get(live.account):
            waiting.pop(live.id, None)
        if live.is_named:
            self._used_names[live.id] = None
        while len(self._used_names) > _REMEMBERED_NAMES:
            self._used_names.popitem(last=False)
        if live.session.rewards and live.is_judged:
            self._judged |= dict.fromkeys((live.id, *live.session.turns_of_reply), live.account)
        while len(self._judged) > _REMEMBERED_VERDICTS:
            self._judged.popitem(last=False)
        if self._observer is not None:
            self._observer.finished(live)

    @contextmanager
    def _running(self, live: LiveSession) -> Iterator[None]:
        live.num_running += 1
        self._running_now.add(live)
        try:
            yield
        finally:
            live.num_running -= 1
            if not live.num_running:
                self._running_now.discard(live)
            live.used_at = _now()
            sampled = live.session.num_sampled
            live.account.spend_tokens(sampled - live.num_charged)
            live.num_charged = sampled
            if not live.is_finished:
                self._index_replies(live)

    def _index_replies(self, live: LiveSession) -> None:
        for reply_id in reversed(live.session.turns_of_reply):
            known = self._by_reply.get(reply_id, ())
            if live in known:
                return  # and so are the ones before it
            self._by_reply[reply_id] = (*known, live)


def _cancel(live: LiveSession) -> None:
    if live.timer is not None:
        live.timer.cancel()
        live.timer = None


def _later(seconds: float, act: Any, live: LiveSession) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, act, live)


def _now() -> float:
    return asyncio.get_running_loop().time()
