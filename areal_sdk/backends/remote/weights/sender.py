"""The main process's side of the weight sender: starts the child and calls it."""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from areal_sdk.backends.remote.client import WeightLayout
from areal_sdk.errors import EngineError, ProcessError
from areal_sdk.process import Child, ProcessSpec, spawn
from areal_sdk.types import WeightUpdate

BUCKET_BYTES = 256 << 20


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
    ) -> None:
        self._timeout_s = timeout_s
        self._log_dir = log_dir
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
        self._filled: list[list[tuple[str, str, Sequence[int]]]] = []
        self._start_lock = asyncio.Lock()
        self.generation = 0
        """Counts the children: what one had is gone with it."""

    async def open(self, update: WeightUpdate) -> None:
        """Map `update`'s files."""
        await self._started()
        if self._opened != update:
            self._filled = []
            await self.call("open", asdict(update))
            self._opened = update

    async def fill(self) -> list[list[tuple[str, str, Sequence[int]]]]:
        """Lay the opened version out in buckets; returns their `(name, dtype, shape)`s."""
        if not self._filled:
            answer = await self.call("fill", {})
            self._filled = [
                [(str(name), str(dtype), list(shape)) for name, dtype, shape in bucket]
                for bucket in answer["buckets"]
            ]
        return self._filled

    async def call(self, method: str, payload: dict[str, Any], *, timeout_s: float = 0.0) -> Any:
        child = await self._started()
        try:
            reply = await child.call(method, payload, timeout_s=timeout_s or self._timeout_s)
        except ProcessError as exc:
            raise EngineError(f"the weight sender could not {method!r}: {exc}") from exc
        return reply.payload

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
                    name="weight-sender",
                    entry="areal_sdk.backends.remote.weights.sender_process:main",
                    args=self._args,
                )
                try:
                    self._child = await spawn(spec, log_dir=self._log_dir)
                except ProcessError as exc:
                    raise EngineError(f"the weight sender did not start: {exc}") from exc
            return self._child
