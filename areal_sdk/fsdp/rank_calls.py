"""The contract of the trainer's ranks, and all ranks as one process that is called.

Every rank gets every call and does the same; rank 0 has the answer.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import orjson

from areal_sdk.errors import (
    CheckpointError,
    ChildDiedError,
    DamagedError,
    MemoryShortError,
    ProcessError,
    RemoteError,
)
from areal_sdk.process import Buffer, Child, ChildReply
from areal_sdk.process.frames import view_of
from areal_sdk.process.services import Answer, Bulk, Service
from areal_sdk.trajectory import Credit
from areal_sdk.types import WeightUpdate

JSON = Any

FAILURE_GRACE_S = 10.0
"""Seconds that the other ranks have to report what made one of them fail."""
DEATH_GRACE_S = 1.0
"""Seconds to wait, after one rank died, for the report that another had died first."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """JSON and the buffers that belong to it, as the functions of `group_wire` make and take them."""

    text: Bulk
    buffers: tuple[Bulk, ...] = ()

    @classmethod
    def of(cls, payload: JSON, buffers: Sequence[Buffer] = ()) -> Self:
        """Write the JSON. A large batch takes a while, so this is for a thread.

        >>> Parcel.of({"a": [1, 2]}).content()
        ({'a': [1, 2]}, ())
        """
        return cls(orjson.dumps(payload), tuple(buffers))

    def content(self) -> tuple[JSON, Sequence[Buffer]]:
        return orjson.loads(view_of(self.text)), self.buffers


@dataclass(frozen=True, slots=True)
class StepReport:
    """The outcome of a step."""

    metrics: Mapping[str, float]
    notices: tuple[str, ...]
    """Lines for the user."""
    credit: Mapping[str, Credit] = field(default_factory=dict)
    """Credits of the episodes, by id."""
    tokens: Parcel | None = None
    """The record of the step's tokens, if the run keeps it."""


@dataclass(frozen=True, slots=True)
class Published:
    """New weights in a file on the machine of rank 0."""

    update: WeightUpdate
    size: int
    """Bytes of the file."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a file."""

    data: Bulk


class RankCalls(Service, Protocol):
    """Contract of a rank. Directories are absolute, since a rank may have another working directory."""

    def step(self, groups: Parcel, version: int) -> Answer[StepReport]: ...

    def learn(
        self, rows: Parcel, learning_rate: float, divisor: float | None
    ) -> Answer[StepReport]: ...

    def score(self, rows: Parcel) -> Answer[tuple[float, ...]]: ...

    def publish(self, version: int) -> Answer[Published]: ...

    def fetch(self, path: str, offset: int, size: int) -> Answer[Chunk]:
        """A part of a file that rank 0 has published, for a main process on another machine."""

    def release_memory(self) -> Answer[None]: ...

    def begin_save(self, directory: str, extra: Parcel) -> Answer[None]:
        """Copy the state, and begin to write the copy."""

    def finish_save(self) -> Answer[None]:
        """Wait until the checkpoint that was begun last is written. Other calls are answered meanwhile."""

    def load(self, directory: str) -> Answer[Parcel]:
        """Bring the rank to the saved state. The answer is the `extra` of `begin_save`."""

    def roll_back(self, directory: str) -> Answer[None]: ...

    def export(self, directory: str) -> Answer[None]: ...


class AllRanks:
    """Asks all ranks the same, and answers as rank 0 does."""

    def __init__(self) -> None:
        self.children: list[Child] = []

    async def call(
        self, method: str, payload: JSON = None, buffers: Sequence[Buffer] = (), *, timeout_s: float
    ) -> ChildReply:
        """The answer of rank 0, once all ranks have answered. If one fails alone, the others would wait in a
        collective, so they get a moment to fail too and are then ended."""
        if not self.children:
            raise ProcessError(f"the trainer is not running: {method!r} before start()")
        calls = [
            asyncio.create_task(rank.call(method, payload, buffers, timeout_s=timeout_s))
            for rank in self.children
        ]
        try:
            done, pending = await asyncio.wait(calls, return_when=asyncio.FIRST_EXCEPTION)
            if pending:
                has_died = any(isinstance(call.exception(), ChildDiedError) for call in done)
                grace_s = DEATH_GRACE_S if has_died else FAILURE_GRACE_S
                _, pending = await asyncio.wait(calls, timeout=grace_s)
            died = [rank for rank in self.children if rank.exited.done()]
            if pending:
                await asyncio.gather(*(rank.kill() for rank in self.children))
                await asyncio.wait(calls)
        finally:
            for call in calls:
                call.cancel()
        errors = {
            rank: error
            for rank, call in zip(self.children, calls, strict=True)
            if (error := call.exception()) is not None
        }
        if errors:
            raise _cause(errors, died)
        return calls[0].result()


class InTurn:
    """Asks all ranks one call after another. Ranks are not told that a caller was cancelled: ranks that had begun its
    call and ranks that had not would then wait for each other in different collectives."""

    def __init__(self, ranks: AllRanks) -> None:
        self._ranks = ranks
        self._last: asyncio.Task[ChildReply] | None = None

    async def call(
        self, method: str, payload: JSON = None, buffers: Sequence[Buffer] = (), *, timeout_s: float
    ) -> ChildReply:
        await self.idle()
        asking = self._ranks.call(method, payload, buffers, timeout_s=timeout_s)
        self._last = asyncio.create_task(asking, name=f"trainer: {method}")
        return await asyncio.shield(self._last)

    async def idle(self) -> None:
        """Wait until the last call has ended, however that happens."""
        if self._last is not None:
            await asyncio.wait({self._last})


_EXPLAINED = {kind.__name__: kind for kind in (CheckpointError, DamagedError, MemoryShortError)}


def _cause(errors: Mapping[Child, BaseException], died: Sequence[Child]) -> BaseException:
    """The error that explains the others: a rank's own exception, else the death of a rank that was killed, since the
    others then died of a broken connection to it."""
    for error in errors.values():
        if isinstance(error, RemoteError):
            kind = _EXPLAINED.get(error.kind)
            return error if kind is None else kind(error.message)
    killed = [rank for rank in died if rank.exited.result().signal is not None]
    return errors[next(rank for rank in (*killed, *died, *errors) if rank in errors)]
