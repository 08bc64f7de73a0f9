"""External sessions: episodes of callers outside the run.

    open -> takes turns -> ended (by its client, a reward, silence) -> rewarded, or the wait is over

An observer is told when a session opens, and when neither turns nor rewards can be added any more.
"""

import asyncio
import re
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from areal_sdk.config import ServeSection
from areal_sdk.gateway.accounts.accounts import Account
from areal_sdk.gateway.accounts.keyring import Keyring
from areal_sdk.gateway.errors import ApiError, bad_request, learning_ended, session_closed
from areal_sdk.gateway.sessions.posted_rewards import PostedReward
from areal_sdk.gateway.sessions.session import Session, SessionLimits
from areal_sdk.gateway.sessions.store import SessionStore

SPLIT = "live"

_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")

_DEFAULTS = ServeSection()
_REMEMBERED = 10_000


class Ending(StrEnum):
    """The reason why a live session ended."""

    CLIENT = "client"
    REWARD = "reward"
    REQUEST = "request"
    """The session was opened for one request, which is answered."""
    IDLE = "idle"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class ExternalLimits:
    """Limits of live sessions: how long they last, and how much each may use."""

    idle_s: float | None = None
    """Seconds without a request after which a session ends."""
    reward_wait_s: float = _DEFAULTS.reward_wait_s
    """Seconds after the end of a session in which a reward may still come."""
    session: SessionLimits = field(default_factory=SessionLimits)
    group_size: int | None = None
    """Required size of every group, on a server that learns from groups."""
    keeps_rewards: bool = True
    """Whether the sessions that callers name may be learnt from, or recorded."""


@dataclass(slots=True, eq=False)
class ExternalSession:
    """One caller's episode."""

    session: Session
    account: Account
    key: str = ""
    """Name of the account's key that opened the session; empty for the only key of an account."""
    group: str = ""
    """Id that siblings share; empty for a session that was opened alone."""
    group_size: int = 1
    sibling: int = 0
    is_named: bool = False
    """Whether the caller chose the name. A caller may not use a name twice."""
    began_at: float = 0.0
    used_at: float = 0.0
    num_running: int = 0
    """Requests in flight."""
    ended: Ending | None = None
    is_finished: bool = False
    num_charged: int = 0
    """Number of sampled tokens that were charged to the account."""
    timer: asyncio.TimerHandle | None = None

    @property
    def id(self) -> str:
        return self.session.id

    @property
    def caller(self) -> str:
        """The name of the session's account."""
        return self.account.name

    @property
    def split(self) -> str:
        return self.session.split

    @property
    def oldest_version(self) -> int | None:
        return self.session.oldest_version

    @property
    def is_open(self) -> bool:
        """Whether the session takes turns."""
        return self.ended is None

    @property
    def is_judged(self) -> bool:
        """Whether the episode has its reward, or each of its turns has one."""
        given = {posted.turn for posted in self.session.rewards}
        return None in given or given.issuperset(range(len(self.session.turns)))


class SessionObserver(Protocol):
    """The part of a run that records external sessions or learns from them."""

    def opened(self, external: ExternalSession) -> None: ...

    def finished(self, external: ExternalSession) -> None:
        """Take a session that is final: it gets no more turns and no more rewards."""


class ExternalSessions:
    """The sessions of callers. Without an observer a session is forgotten when it ends."""

    def __init__(self, sessions: SessionStore, *, limits: ExternalLimits | None = None) -> None:
        self._sessions = sessions
        self.limits = limits or ExternalLimits()
        self._observer: SessionObserver | None = None
        self._has_ended = False
        """Whether learning has ended. The observer is then still told of sessions, but takes no rewards."""
        self._by_id: dict[str, ExternalSession] = {}
        self._by_secret: Keyring[ExternalSession] = Keyring()
        self._by_reply: dict[str, tuple[ExternalSession, ...]] = {}
        """Sessions that gave each reply, by the id of the reply. Several if another provider gives
        several replies one id."""
        self._running_now: set[ExternalSession] = set()
        self._waiting: dict[Account, OrderedDict[str, ExternalSession]] = {}
        """Sessions that ended and wait for a reward; the one that ended first comes first."""
        self._used_names: OrderedDict[str, None] = OrderedDict()
        self._judged: OrderedDict[str, Account] = OrderedDict()
        """Ids of sessions and replies whose finished episodes have a reward -> the account of each."""

    def observe(self, observer: SessionObserver | None) -> None:
        """Tell `observer` of every session from now on, and of those that are open already."""
        self._has_ended = False
        self._observer = observer
        for external in self:
            if observer is not None and external.ended is None:
                observer.opened(external)

    def end_learning(self) -> None:
        """Refuse rewards from now on. The observer is still told of every session."""
        self._has_ended = True

    def __iter__(self) -> Iterator[ExternalSession]:
        return iter(list(self._by_id.values()))

    def get(self, session_id: str) -> ExternalSession | None:
        """A session that is open, or waits for its reward."""
        return self._by_id.get(session_id)

    def by_secret(self, secret: str) -> ExternalSession | None:
        return self._by_secret.find(secret)

    def by_reply(self, reply_id: str, account: Account) -> ExternalSession | None:
        """The session of `account` that gave that reply. An id alone proves nothing: others may know it."""
        found = [
            external for external in self._by_reply.get(reply_id, ()) if external.account is account
        ]
        if not found:
            found = [
                external
                for external in self._running_now
                if external.account is account and external.session.replies.gave(reply_id)
            ]
        if len(found) > 1:
            raise bad_request(
                f"the provider gave the id {reply_id!r:.100} to replies of {len(found)} sessions: name "
                "the session, or the reply by its header x-areal-reply",
                param="turn",
            )
        return found[0] if found else None

    @property
    def takes_rewards(self) -> bool:
        """Whether rewards are kept; else a session is forgotten when it ends. Raises a 503 if learning has ended."""
        if self._has_ended:
            raise learning_ended()
        return self._observer is not None

    def judged_of(self, what: str) -> Account | None:
        """The account of that session or reply, if its episode is over and has its reward."""
        return self._judged.get(what)

    def open(
        self,
        account: Account,
        session_id: str,
        *,
        key: str = "",
        group: str = "",
        group_size: int = 1,
        sibling: int = 0,
        is_named: bool = False,
        is_counted: bool = False,
        is_alone: bool = False,
        limits: SessionLimits | None = None,
        split: str = SPLIT,
        **options: Any,
    ) -> ExternalSession:
        """A new session of `account`; 429 if its quota has no room for one. `is_counted`: the session is counted as one
        of the account's open sessions already. `is_alone`: the session is for one request, so nobody continues it."""
        if not is_counted:
            account.open_sessions()
        session = self._sessions.open(
            session_id, limits=limits or self.limits.session, split=split, **options
        )
        if not is_alone:
            self._sessions.claim(session)
        now = _now()
        external = ExternalSession(
            session, account, key, group, group_size, sibling, is_named, began_at=now, used_at=now
        )
        self._by_id[external.id] = external
        for secret in (session.key, session.slug):
            self._by_secret.add(secret, external)
        if self.limits.idle_s is not None:
            external.timer = _later(self.limits.idle_s, self._end_if_idle, external)
        if self._observer is not None:
            self._observer.opened(external)
        return external

    def named(self, account: Account, name: str, *, key: str = "") -> ExternalSession:
        """The session that `account` calls `name`, opened on its first use. A name serves once."""
        if not _NAME.fullmatch(name):
            raise bad_request(
                "a session's name has up to 128 letters, digits, '.', '_' and '-'", param="session"
            )
        session_id = f"{account.name}/{name}"
        external = self._by_id.get(session_id)
        if session_id in self._used_names or (external is not None and external.ended is not None):
            raise session_closed()
        if external is not None and external.account is account:
            return external
        self._sessions.refuse_lost(session_id)
        if external is not None or self._sessions.get(session_id) is not None:
            raise ApiError(409, f"Session {session_id!r} is another's.", code="session_exists")
        return self.open(account, session_id, key=key, is_named=True)

    @contextmanager
    def request(self, external: ExternalSession) -> Iterator[Session]:
        """One request that samples in the session, and counts against the quota of the session's account."""
        with external.account.request(), self._running(external):
            yield external.session

    @contextmanager
    def alone(self, account: Account, *, key: str = "") -> Iterator[Session]:
        """A session for one request: its episode has one turn, and the id of the reply names it for a reward."""
        with account.request():  # before it opens: what is refused is no episode
            session_id = self._sessions.shard.new_session_id(f"{account.name}-")
            external = self.open(account, session_id, key=key, is_alone=True)
            try:
                with self._running(external):
                    yield external.session
            finally:
                self.end(external, Ending.REQUEST)

    def reward(
        self,
        external: ExternalSession,
        reward: float,
        *,
        turn: int | str | None = None,
        choice: int | None = None,
    ) -> PostedReward:
        """Keep a verdict. A verdict on the episode ends the session, if the run learns from it.

        A session that was opened through the control plane has a trace, which shows its verdicts.
        """
        if external.is_named and not self.limits.keeps_rewards:
            raise ApiError(
                409,
                "This server keeps no rewards: start it with `areal-sdk serve --record` to keep them, or "
                "with `--learn` to train on them.",
                code="rewards_not_kept",
                retry=False,
            )
        is_wanted = self.takes_rewards
        posted = external.session.post_reward(reward, turn=turn, choice=choice)
        if is_wanted:
            if posted.turn is None:
                self.end(external, Ending.REWARD)
            self._finish_if_judged(external)
        return posted

    def end(self, external: ExternalSession, why: Ending) -> None:
        """End the session: it takes no more turns. Safe to call twice."""
        if external.ended is not None:
            return
        external.ended = why
        external.session.close(keeps_streams=why is not Ending.SHUTDOWN)
        self._index_replies(external)  # those among them whose clients left
        external.account.close_session()
        _cancel(external)
        is_awaited = self._observer is not None and not self._has_ended
        if not is_awaited or not external.session.turns or why is Ending.SHUTDOWN:
            self._finish(external)
            return
        waiting = self._waiting.setdefault(external.account, OrderedDict())
        waiting[external.id] = external
        external.timer = _later(self.limits.reward_wait_s, self._finish, external)
        self._finish_if_judged(external)
        if len(waiting) > external.account.quota.max_sessions:
            self._finish(next(iter(waiting.values())))  # it has waited longest

    def close_all(self) -> None:
        """End all sessions, without waiting for requests or rewards."""
        for external in self:
            self.end(external, Ending.SHUTDOWN)
            self._finish(external)

    def _end_if_idle(self, external: ExternalSession) -> None:
        assert self.limits.idle_s is not None, "only then a timer is set"
        silent_s = 0.0 if external.num_running else _now() - external.used_at
        if silent_s >= self.limits.idle_s:
            self.end(external, Ending.IDLE)
        else:
            external.timer = _later(self.limits.idle_s - silent_s, self._end_if_idle, external)

    def _finish_if_judged(self, external: ExternalSession) -> None:
        if external.ended is not None and external.is_judged:
            self._finish(external)

    def _finish(self, external: ExternalSession) -> None:
        if external.is_finished:
            return
        external.is_finished = True
        _cancel(external)
        del self._by_id[external.id]
        for secret in (external.session.key, external.session.slug):
            self._by_secret.remove(secret)
        for reply_id in external.session.replies.turns_of:
            others = tuple(
                known for known in self._by_reply.pop(reply_id, ()) if known is not external
            )
            if others:
                self._by_reply[reply_id] = others
        if waiting := self._waiting.get(external.account):
            waiting.pop(external.id, None)
        if external.is_named:
            self._used_names[external.id] = None
        while len(self._used_names) > _REMEMBERED:
            self._used_names.popitem(last=False)
        if external.session.rewards and external.is_judged:
            self._judged |= dict.fromkeys(
                (external.id, *external.session.replies.turns_of), external.account
            )
        while len(self._judged) > _REMEMBERED:
            self._judged.popitem(last=False)
        if self._observer is not None:
            self._observer.finished(external)

    @contextmanager
    def _running(self, external: ExternalSession) -> Iterator[None]:
        external.num_running += 1
        self._running_now.add(external)
        try:
            yield
        finally:
            external.num_running -= 1
            if not external.num_running:
                self._running_now.discard(external)
            external.used_at = _now()
            sampled = external.session.num_sampled
            external.account.spend_tokens(sampled - external.num_charged)
            external.num_charged = sampled
            if not external.is_finished:
                self._index_replies(external)

    def _index_replies(self, external: ExternalSession) -> None:
        for reply_id in reversed(list(external.session.replies.turns_of)):
            known = self._by_reply.get(reply_id, ())
            if external in known:
                return  # and so are the ones before it
            self._by_reply[reply_id] = (*known, external)


def _cancel(external: ExternalSession) -> None:
    if external.timer is not None:
        external.timer.cancel()
        external.timer = None


def _later(seconds: float, act: Any, external: ExternalSession) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(seconds, act, external)


def _now() -> float:
    return asyncio.get_running_loop().time()
