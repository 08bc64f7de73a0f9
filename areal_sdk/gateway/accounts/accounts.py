"""The callers of a server, and the share of it that each of them may use."""

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from areal_sdk.config import Quota
from areal_sdk.errors import ConfigError
from areal_sdk.gateway.accounts.key_log import FollowedKeys, KeyLine, digest_of
from areal_sdk.gateway.accounts.keyring import Keyring
from areal_sdk.gateway.errors import ApiError

ADMIN = "admin"

logger = logging.getLogger(__name__)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHORTEST_KEY = 16
_BUSY_RETRY_S = 1.0
"""Seconds after which a caller over its quota is told to ask again."""


class Account:
    """One user: a name, a quota, and what was used of it."""

    def __init__(
        self,
        name: str,
        quota: Quota | None = None,
        *,
        usage: "Usage | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.quota = quota or Quota()
        self._usage = usage or Usage(self.quota, clock)

    @contextmanager
    def request(self) -> Iterator[None]:
        """One request that samples; 429 where the quota has no room for it."""
        self._usage.begin_request()
        try:
            yield
        finally:
            self._usage.end_request()

    def open_sessions(self, count: int = 1) -> None:
        """Count `count` more sessions that take turns; raise a 429 if the quota does not allow them."""
        self._usage.open_sessions(count)

    def close_session(self) -> None:
        """Count one open session less: it takes no more turns."""
        self._usage.close_session()

    def spend_tokens(self, count: int) -> None:
        """Charge sampled tokens. Their number is known only after a request, so the next request waits."""
        self._usage.spend_tokens(count)


class Usage:
    """The part of a quota that is in use."""

    def __init__(self, quota: Quota, clock: Callable[[], float] = time.monotonic) -> None:
        self.quota = quota
        self.num_running = 0
        self.num_open = 0
        """Number of sessions that still accept requests."""
        self.requests = Allowance(quota.requests_per_minute, clock)
        self.tokens = Allowance(quota.tokens_per_minute, clock)

    def begin_request(self) -> None:
        most = self.quota.max_running
        if most is not None and self.num_running >= most:
            raise _over_quota(f"{most} requests at the same time", _BUSY_RETRY_S)
        for allowance, unit in ((self.tokens, "sampled tokens"), (self.requests, "requests")):
            if (wait_s := allowance.wait_s()) > 0:
                raise _over_quota(f"{allowance.per_minute} {unit} a minute", wait_s)
        self.requests.spend(1)
        self.num_running += 1

    def end_request(self) -> None:
        self.num_running -= 1

    def open_sessions(self, count: int) -> None:
        if self.num_open + count > self.quota.max_sessions:
            raise _over_quota(f"{self.quota.max_sessions} open sessions", _BUSY_RETRY_S)
        self.num_open += count

    def close_session(self) -> None:
        self.num_open -= 1

    def spend_tokens(self, count: int) -> None:
        self.tokens.spend(count)


@dataclass(slots=True)
class Allowance:
    """An amount per minute that refills continuously, so no request waits for a full minute.

    >>> now = 0.0
    >>> allowance = Allowance(60, lambda: now)
    >>> allowance.spend(60); allowance.wait_s()
    1.0
    >>> now = 0.75; allowance.wait_s()
    0.25
    """

    per_minute: int | None
    """None: no limit."""
    clock: Callable[[], float]
    _left: float = field(init=False)
    _at: float = field(init=False)

    def __post_init__(self) -> None:
        self._left = float(self.per_minute or 0)
        self._at = self.clock()

    @property
    def state(self) -> tuple[float, float]:
        """The amount that is left, and the time when that amount was left."""
        return self._left, self._at

    @state.setter
    def state(self, state: tuple[float, float]) -> None:
        self._left, self._at = state

    def spend(self, amount: float) -> None:
        self._refill()
        self._left -= amount

    def wait_s(self) -> float:
        """Seconds until the allowance has a unit to spend; 0 if it has one now."""
        if self.per_minute is None:
            return 0.0
        self._refill()
        return max(0.0, (1.0 - self._left) * 60.0 / self.per_minute)

    def _refill(self) -> None:
        if self.per_minute is None:
            return
        now = self.clock()
        refilled = self._left + (now - self._at) * self.per_minute / 60.0
        self._left, self._at = min(float(self.per_minute), refilled), now


@dataclass(frozen=True, slots=True)
class User:
    """A user as the configuration names it: a name, a key and a quota."""

    name: str
    api_key: str = field(default="", repr=False)
    """Empty for a user whose keys are made while the server runs."""
    quota: Quota = field(default_factory=Quota)


@dataclass(frozen=True, slots=True)
class KeyHolder:
    """An account, by one of its keys."""

    account: Account
    key: str = ""
    """Name of the key; empty for the only key of an account."""


class Accounts:
    """Everybody who may call, by key; the holder of the admin key among them."""

    def __init__(
        self,
        users: Iterable[User] = (),
        *,
        admin_key: str,
        quota: Quota | None = None,
        usage: Callable[[str, Quota], Usage] | None = None,
        keys: FollowedKeys | None = None,
    ) -> None:
        """`usage` makes the `Usage` of an account from its name and its quota. `keys` tells which keys are made and
        revoked while the server runs. A user without a quota of its own has `quota`."""
        _check_key("the admin key", admin_key)
        self._quota = quota or Quota()
        self._make_usage = usage or _own_usage
        self._by_key: Keyring[KeyHolder] = Keyring()
        self._by_name: dict[str, Account] = {}
        self._made: dict[str, str] = {}
        """Digests of the keys in `keys` that are valid, by their names."""
        self._keys = keys
        self.admin = self._open(ADMIN, self._quota)
        self._by_key.add(digest_of(admin_key), KeyHolder(self.admin))
        for user in users:
            self._add(user)
        for line in keys.new_lines() if keys is not None else ():
            self._apply(line)

    def find(self, key: str) -> KeyHolder | None:
        """The account of a key, as the file of keys is now: a key that was revoked has none."""
        self.refresh()
        return self._by_key.find(digest_of(key))

    def by_key(self, key: str) -> Account | None:
        holder = self.find(key)
        return None if holder is None else holder.account

    def by_name(self, name: str) -> Account | None:
        self.refresh()
        return self._by_name.get(name)

    @property
    def names(self) -> Collection[str]:
        """The names of all accounts, in a view that shows later accounts too."""
        return self._by_name.keys()

    def refresh(self) -> None:
        """Apply the lines that the file of keys got since the last call, and log each."""
        if self._keys is None:
            return
        for line in self._keys.new_lines():
            self._apply(line)
            done = "made" if line.is_made else "revoked"
            logger.warning("key %s was %s by %s at %s", line.name, done, line.by, line.at)
        if problem := self._keys.problem():
            logger.error("%s", problem)

    def _apply(self, line: KeyLine) -> None:
        if not line.is_made:
            if (digest := self._made.pop(line.name, None)) is not None:
                self._by_key.remove(digest)
            return
        account = self._by_name.get(line.user) or self._open(line.user, self._quota)
        self._made[line.name] = line.sha256
        self._by_key.add(line.sha256, KeyHolder(account, line.key))

    def _add(self, user: User) -> None:
        if not _NAME.fullmatch(user.name):
            raise ConfigError(f"user {user.name!r}: use up to 64 letters, digits, '.', '_' and '-'")
        if user.name in self._by_name:
            raise ConfigError(f"user {user.name!r}: that name is taken")
        account = self._open(user.name, user.quota)
        if not user.api_key and self._keys is not None:
            return
        _check_key(f"user {user.name!r}: an api_key", user.api_key)
        digest = digest_of(user.api_key)
        if self._by_key.find(digest) is not None:
            raise ConfigError(f"user {user.name!r}: another user has the same api_key")
        self._by_key.add(digest, KeyHolder(account))

    def _open(self, name: str, quota: Quota) -> Account:
        account = Account(name, quota, usage=self._make_usage(name, quota))
        self._by_name[name] = account
        return account


def _own_usage(name: str, quota: Quota) -> Usage:
    return Usage(quota)


def _check_key(what: str, key: str) -> None:
    if len(key) < _SHORTEST_KEY or not key.isascii():
        raise ConfigError(
            f"{what} has at least {_SHORTEST_KEY} ASCII characters; "
            "try: python -c 'import secrets; print(secrets.token_urlsafe(24))'"
        )


def _over_quota(what: str, retry_after_s: float) -> ApiError:
    return ApiError(
        429,
        f"Your quota is {what}.",
        code="rate_limit_exceeded",
        retry=True,
        retry_after_s=retry_after_s,
    )
