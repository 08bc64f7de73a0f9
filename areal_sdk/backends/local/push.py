"""New weights to an engine whose machine does not see the file: over its connection, in chunks.

main process: push(child, path) -- chunk, chunk, ... --> worker: Received.write
"""

import os
from pathlib import Path
from typing import IO, Any

from areal_sdk.backends.local.protocol import ModelCalls
from areal_sdk.backends.room import take_room
from areal_sdk.errors import EngineError
from areal_sdk.process import Child
from areal_sdk.process.services import Client
from areal_sdk.process.threads import in_thread

CHUNK_BYTES = 16 * 2**20
"""Size of a chunk, which is the memory that both sides need beside the weights."""
CHUNK_TIMEOUT_S = 60.0
"""Seconds for one chunk to arrive and be written on the other machine."""


async def push(child: Child, path: Path) -> str:
    """Send the file `path`; returns where the process of `child` finds the copy."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            copy = ""
            for offset in range(0, size, CHUNK_BYTES):
                chunk = await in_thread(
                    lambda offset=offset: os.pread(file.fileno(), CHUNK_BYTES, offset),  # type: ignore[misc]
                    name="read weights",
                )
                copy = await Client[ModelCalls](child).call(
                    ModelCalls.receive_weights, chunk, offset, size, timeout_s=CHUNK_TIMEOUT_S
                )
    except OSError as exc:
        raise EngineError(
            f"the weights at {path} cannot be sent to the engine on {child.host} ({exc}): weights in a "
            "directory reach only engines that see it, at the same path"
        ) from exc
    return copy


class Received:
    """The weights that are being received, or were received: one file without a name, which ends with this process."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None

    def write(self, chunk: bytes | memoryview, *, offset: int, size: int) -> dict[str, Any]:
        """Add a part of a file of `size` bytes. The part at 0 begins a new file. Returns the path at which it can be
        opened."""
        if offset == 0:
            self.forget()
            self._file = take_room(size, whose="the engine's")
        assert self._file is not None, "a file begins at 0"
        os.pwrite(self._file.fileno(), chunk, offset)
        return {"path": f"/proc/self/fd/{self._file.fileno()}"}

    def forget(self) -> None:
        """Free the room of the file. A mapped part stays until it is unmapped."""
        if self._file is not None:
            self._file.close()
            self._file = None
