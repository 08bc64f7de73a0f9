"""The ledger counts the episodes of a run by state. It balances at every instant, or the run stops.

    started = running + buffered + trained + sum(dropped)

Evaluation episodes and the branches of an episode do not count. An infrastructure retry counts as the same episode.

>>> books = Ledger()
>>> books.start(3); books.buffer(2); books.drop(DropReason.ERROR_AGENT); books.train(2)
>>> books.kept, str(books)
(2, "started 3 = running 0 + buffered 0 + trained 2 + dropped {'error_agent': 1}")
>>> books.train()
Traceback (most recent call last):
    ...
areal_sdk.errors.LedgerError: train(1) with 0 buffered: started 3 = running 0 + buffered 0 + trained 2 + dropped {'error_agent': 1}
"""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Self

from areal_sdk.errors import LedgerError


class DropReason(StrEnum):
    """The reason why an episode was not trained. The set is closed: a new way to lose an episode needs a name here."""

    ZERO_VARIANCE = "zero_variance"
    """All rewards of the episode's group are equal: nothing to learn."""
    STALE = "stale"
    ERROR_AGENT = "error_agent"
    ERROR_REWARD = "error_reward"
    ERROR_ENVIRONMENT = "error_environment"
    ERROR_INFRASTRUCTURE = "error_infrastructure"
    ERROR_TIMEOUT = "error_timeout"
    ABSTAINED = "abstained"
    """No reward was given, on purpose."""
    TRUNCATED = "truncated"
    """The episode ran into a turn, token or context limit, and the run drops such episodes."""
    UNTRAINABLE = "untrainable"
    """No sampled token has a logprob of the policy."""
    GROUP_INCOMPLETE = "group_incomplete"
    """The episode was valid, but too few of its siblings were."""
    ROLLED_BACK = "rolled_back"
    """Sampled by weights that the guard took back (`run.guard`)."""
    CANCELLED = "cancelled"
    LOST_AT_RESTART = "lost_at_restart"
    """The episode ran or was buffered when the run was killed; its task is issued again."""


class Ledger:
    """Counts every episode exactly once. Each operation checks the balance, or raises."""

    def __init__(self) -> None:
        self._started = 0
        self._running = 0
        self._buffered = 0
        self._trained = 0
        self._dropped: dict[DropReason, int] = {}

    @property
    def started(self) -> int:
        return self._started

    @property
    def running(self) -> int:
        return self._running

    @property
    def buffered(self) -> int:
        return self._buffered

    @property
    def trained(self) -> int:
        return self._trained

    @property
    def dropped(self) -> Mapping[DropReason, int]:
        """Dropped episodes by reason: only the reasons that occurred."""
        return MappingProxyType(self._dropped)

    @property
    def kept(self) -> int:
        """Episodes accepted since the run began and not dropped, including the trained ones.

        The staleness gate counts slots of whole groups instead: `TrajectoryBuffer.num_slots_held`.
        """
        return self._buffered + self._trained

    def start(self, count: int = 1) -> None:
        """Note that `count` episodes begin."""
        self._move("start", count)
        self._started += count
        self._running += count
        self.check()

    def buffer(self, count: int = 1) -> None:
        """Book `count` running episodes as finished and accepted."""
        self._move("buffer", count, running=self._running)
        self._running -= count
        self._buffered += count
        self.check()

    def train(self, count: int = 1) -> None:
        """Book `count` buffered episodes as trained."""
        self._move("train", count, buffered=self._buffered)
        self._buffered -= count
        self._trained += count
        self.check()

    def drop(self, reason: DropReason, count: int = 1, *, buffered: bool = False) -> None:
        """Book `count` running (or buffered) episodes as dropped."""
        if buffered:
            self._move(f"drop {reason.value}", count, buffered=self._buffered)
            self._buffered -= count
        else:
            self._move(f"drop {reason.value}", count, running=self._running)
            self._running -= count
        if count:
            self._dropped[reason] = self._dropped.get(reason, 0) + count
        self.check()

    def check(self) -> None:
        """Raise `LedgerError` unless the ledger balances."""
        ended = self._trained + sum(self._dropped.values())
        counts = (self._running, self._buffered, self._trained, *self._dropped.values())
        if self._started != self._running + self._buffered + ended or min(counts) < 0:
            raise LedgerError(f"the books do not balance: {self}")

    def snapshot(self) -> dict[str, Any]:
        """JSON that `restore` reads."""
        return {
            "started": self._started,
            "running": self._running,
            "buffered": self._buffered,
            "trained": self._trained,
            "dropped": {reason.value: count for reason, count in self._dropped.items()},
        }

    @classmethod
    def restore(cls, snapshot: Mapping[str, Any]) -> Self:
        """The ledger after a restart: episodes that ran or were buffered become `lost_at_restart`."""
        books = cls()
        try:
            books._started = snapshot["started"]
            books._running = snapshot["running"]
            books._buffered = snapshot["buffered"]
            books._trained = snapshot["trained"]
            books._dropped = {DropReason(r): n for r, n in snapshot["dropped"].items()}
        except (KeyError, TypeError, ValueError, AttributeError) as exc:
            raise LedgerError(f"not a ledger snapshot ({exc}): {dict(snapshot)}") from exc
        books.check()
        books.drop(DropReason.LOST_AT_RESTART, books._running)
        books.drop(DropReason.LOST_AT_RESTART, books._buffered, buffered=True)
        return books

    def __str__(self) -> str:
        dropped = {reason.value: count for reason, count in self._dropped.items()}
        return (
            f"started {self._started} = running {self._running} + buffered {self._buffered} "
            f"+ trained {self._trained} + dropped {dropped}"
        )

    def _move(self, what: str, count: int, **source: int) -> None:
        """Raise LedgerError, before any count changes, if the source has fewer than `count` episodes."""
        for name, available in source.items():
            if count > available:
                raise LedgerError(f"{what}({count}) with {available} {name}: {self}")
        if count < 0:
            raise LedgerError(f"{what}({count}): a count cannot be negative")
