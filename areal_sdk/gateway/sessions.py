"""The open sessions, found by id, by key or by URL."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import TYPE_CHECKING

from areal_sdk.errors import ConfigError
from areal_sdk.gateway.errors import session_closed
from areal_sdk.gateway.request import SamplingPolicy
from areal_sdk.gateway.session import Session, SessionLimits

if TYPE_CHECKING:
    from areal_sdk.gateway.completion import Completer

_REMEMBERED_CLOSED = 10_000

_UNLIMITED = SessionLimits()


class SessionStore:
    """The open sessions, by key and by URL."""

    def __init__(self, completer: "Completer", *, sampling: SamplingPolicy) -> None:
        self._completer = completer
        self._sampling = sampling
        self._by_id: dict[str, Session] = {}
        self._by_key: dict[str, Session] = {}
        self._by_slug: dict[str, Session] = {}
        self._closed: OrderedDict[str, None] = OrderedDict()
        """Keys and slugs of sessions that are over: their late requests deserve a clear answer."""

    def __len__(self) -> int:
        return len(self._by_id)

    def open(
        self,
        session_id: str,
        *,
        limits: SessionLimits = _UNLIMITED,
        sampling: SamplingPolicy | None = None,
        seed: int | None = None,
        split: str = "train",
    ) -> Session:
        if session_id in self._by_id:
            raise ConfigError(f"session {session_id!r} is open already: close it first")
        session = Session(
            session_id,
            completer=self._completer,
            on_close=self._forget,
            limits=limits,
            sampling=sampling or self._sampling,
            seed=seed,
            split=split,
        )
        self._by_id[session_id] = session
        self._by_key[session.key] = session
        self._by_slug[session.slug] = session
        return session

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_id.values()))

    def get(self, session_id: str) -> Session | None:
        return self._by_id.get(session_id)

    def by_key(self, key: str) -> Session | None:
        """The open session of that key; raises `session_closed` if it was one."""
        return self._find(self._by_key, key)

    def by_slug(self, slug: str) -> Session | None:
        return self._find(self._by_slug, slug)

    def _find(self, sessions: dict[str, Session], name: str) -> Session | None:
        session = sessions.get(name)
        if session is None and name in self._closed:
            raise session_closed()
        return session

    def close_all(self) -> None:
        for session in list(self._by_id.values()):
            session.close()

    def _forget(self, session: Session) -> None:
        del self._by_id[session.id], self._by_key[session.key], self._by_slug[session.slug]
        for name in (session.key, session.slug):
            self._closed[name] = None
        while len(self._closed) > 2 * _REMEMBERED_CLOSED:
            self._closed.popitem(last=False)
