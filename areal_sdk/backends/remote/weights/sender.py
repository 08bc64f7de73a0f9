"""The weight sender, from the side of the main process: starts the child and calls it."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar, TypeVarTuple, Unpack

from areal_sdk.backends.remote.client import WeightLayout
from areal_sdk.errors import EngineError, ProcessError
from areal_sdk.process import Child, ProcessSpec, spawn
from areal_sdk.process.services import Answer, Client, Service
from areal_sdk.types import WeightUpdate

R = TypeVar("R")
Ts = TypeVarTuple("Ts")

BUCKET_BYTES = 256 << 20
SENDER = "weight-sender"
"""Name of the process that sends weights."""


Parameter = tuple[str, str, list[int]]
"""Name, dtype and shape."""


@dataclass(frozen=True, slots=True)
class Checksums:
    """The hashes that a server should report."""

    parameters: dict[str, str]
    """Hashes by the names of parameters. Parameters whose hash cannot be predicted are missing."""
    all: str


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """A process group of the sender and the ranks of one server."""

    name: str
    host: str
    port: int
    world_size: int
    backend: str
    timeout_s: float


class SenderCalls(Service, Protocol):
    """Contract of the sender child. Slow calls run beside each other."""

    def open(self, path: str, checksum: str, contents: str) -> Answer[None]:
        """Map a version; all later calls are about this one."""

    def fill(self) -> Answer[list[list[Parameter]]]:
        """Copy the mapped version into the buckets; they keep their memory between versions."""

    def handles(self, bucket: int, receivers: int) -> Answer[list[str]]:
        """Handles of one bucket, one for each receiver. A handle can be opened once, since torch counts the openings."""

    def join(self, group: WeightGroup) -> Answer[None]:
        """Make the group with one server. The call returns when all ranks of the server have joined."""

    def send(self, group: str, bucket: int) -> Answer[None]:
        """Broadcast one bucket in a group."""

    def leave(self, group: str) -> Answer[None]: ...

    def checksums(self, names: list[str]) -> Answer[Checksums]:
        """The hashes that a server should report for its parameters `names`, as far as the sender can predict them."""

    def canary(self, tokens: Sequence[int], candidates: Sequence[int]) -> Answer[Sequence[float]]:
        """log softmax of the candidates after the canary prompt, by a plain transformers forward."""


class WeightSender:
    """The sender child, started on first use and again after it died or was given up."""

    def __init__(
        self,
        *,
        model: Path,
        dtype: str,
        log_dir: Path,
        timeout_s: float,
        layout: WeightLayout,
        bucket_bytes: int = BUCKET_BYTES,
        device: str = "cpu",
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._log_dir = log_dir
        self._env = env or {}
        self._args = {
            "model": str(model),
            "dtype": dtype,
            "bucket_bytes": bucket_bytes,
            "device": device,
            "fused": {name: list(parts) for name, parts in layout.fused.items()},
            "vocabulary_multiple": layout.vocabulary_multiple,
        }
        self._child: Child | None = None
        self._opened: WeightUpdate | None = None
        self._filled: list[list[Parameter]] = []
        self._start_lock = asyncio.Lock()
        self.generation = 0
        """Number of the present child. Groups and handles of an earlier child are gone."""

    async def open(self, update: WeightUpdate) -> None:
        """Map `update`'s files."""
        await self._started()
        if self._opened != update:
            self._filled = []
            assert update.path is not None
            await self.call(SenderCalls.open, update.path, update.checksum, update.contents)
            self._opened = update

    async def fill(self) -> list[list[Parameter]]:
        """Lay the opened version out in buckets; returns their parameters."""
        if not self._filled:
            self._filled = await self.call(SenderCalls.fill)
        return self._filled

    async def call(
        self,
        method: Callable[[SenderCalls, Unpack[Ts]], Answer[R]],
        *arguments: *Ts,
        timeout_s: float = 0.0,
    ) -> R:
        child = await self._started()
        try:
            return await Client[SenderCalls](child).call(
                method, *arguments, timeout_s=timeout_s or self._timeout_s
            )
        except ProcessError as exc:
            raise EngineError(f"the weight sender could not {method.__name__!r}: {exc}") from exc

    @property
    def pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def discard(self) -> None:
        """Kill the child. Servers that wait for it in a collective get an error."""
        child, self._child, self._opened, self._filled = self._child, None, None, []
        if child is not None:
            await child.kill()

    async def aclose(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            await child.aclose(grace_s=2.0)

    async def _started(self) -> Child:
        async with self._start_lock:
            if self._child is None or self._child.exited.done():
                self._opened, self._filled = None, []
                self.generation += 1
                spec = ProcessSpec(
                    name=SENDER,
                    entry="areal_sdk.backends.remote.weights.sender_process:main",
                    args=self._args,
                    env=self._env,
                )
                try:
                    self._child = await spawn(spec, log_dir=self._log_dir)
                except ProcessError as exc:
                    raise EngineError(f"the weight sender did not start: {exc}") from exc
            return self._child
