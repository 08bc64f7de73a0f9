"""The open sessions, found by id, by key or by URL."""

from collections import OrderedDict
from collections.abc import Iterator

from areal_sdk.errors import ConfigError
from areal_sdk.gateway.accounts.keyring import Keyring
from areal_sdk.gateway.errors import session_closed, session_lost
from areal_sdk.gateway.processes.shard import Claims, Shard
from areal_sdk.gateway.sampling.request import SamplingPolicy
from areal_sdk.gateway.sessions.recall import Recall
from areal_sdk.gateway.sessions.replies import KeptReplies
from areal_sdk.gateway.sessions.session import Session, SessionLimits, TurnSampler

_REMEMBERED_CLOSED = 10_000

_UNLIMITED = SessionLimits()


class SessionStore:
    """The open sessions, by key and by URL."""

    def __init__(
        self,
        completer: TurnSampler,
        *,
        sampling: SamplingPolicy,
        shard: Shard | None = None,
        claims: Claims | None = None,
    ) -> None:
        """`shard` and `claims` are given if there are several gateway processes."""
        self.shard = shard or Shard()
        self._completer = completer
        self._claims = claims
        self.sampling = sampling
        """The policy of sessions that are opened without one of their own."""
        self._replies = KeptReplies()
        self._by_id: dict[str, Session] = {}
        self._by_secret: Keyring[Session] = Keyring()
        """Sessions by key and by slug: no key looks like a slug."""
        self._closed: OrderedDict[bytes, None] = OrderedDict()
        """Digests of the names of ended sessions, so that late requests get a clear answer."""

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
        recall: Recall | None = None,
    ) -> Session:
        if session_id in self._by_id:
            raise ConfigError(f"session {session_id!r} is open already: close it first")
        session = Session(
            session_id,
            completer=self._completer,
            on_close=self._forget,
            replies=self._replies,
            limits=limits,
            sampling=sampling or self.sampling,
            seed=seed,
            split=split,
            recall=recall,
            mark=self.shard.mark,
        )
        self._by_id[session_id] = session
        for secret in (session.key, session.slug):
            self._by_secret.add(secret, session)
        return session

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._by_id.values()))

    def get(self, session_id: str) -> Session | None:
        return self._by_id.get(session_id)

    def by_secret(self, secret: str) -> Session | None:
        """The open session with this key or slug. Raises `session_closed` if that session has ended."""
        session = self._by_secret.find(secret)
        if session is None and self._by_secret.digest(secret) in self._closed:
            raise session_closed()
        if session is None:
            self.refuse_lost(secret)
        return session

    def claim(self, session: Session) -> None:
        """Remember the names of a session beyond the end of this process."""
        if self._claims is not None:
            self._claims.add(session.id, session.key, session.slug)

    def refuse_lost(self, name: str) -> None:
        """Raise `session_lost` if a session of that name was lost with an earlier process."""
        if self._claims is not None and self._claims.is_lost(name):
            raise session_lost()

    def close_all(self) -> None:
        for session in list(self._by_id.values()):
            session.close()

    def _forget(self, session: Session) -> None:
        del self._by_id[session.id]
        for secret in (session.key, session.slug):
            self._by_secret.remove(secret)
            self._closed[self._by_secret.digest(secret)] = None
        while len(self._closed) > 2 * _REMEMBERED_CLOSED:
            self._closed.popitem(last=False)
