"""New weights to an engine whose machine does not see the file: over its connection, in chunks.

main process: push(child, path) -- chunk, chunk, ... --> worker: Received.write
"""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from areal_sdk.errors import EngineError
from areal_sdk.process import Child
from areal_sdk.process.threads import in_thread

CHUNK_BYTES = 16 * 2**20
"""The memory of both sides beside the weights."""
CHUNK_TIMEOUT_S = 60.0
SHARED_MEMORY = Path("/dev/shm")


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
                where = {"offset": offset, "size": size}
                reply = await child.call(
                    "receive_weights", where, [chunk], timeout_s=CHUNK_TIMEOUT_S
                )
                copy = reply.payload["path"]
    except OSError as exc:
        raise EngineError(
            f"the weights at {path} cannot be sent to the engine on {child.host} ({exc}): weights in a "
            "directory reach only engines that see it, at the same path"
        ) from exc
    return copy


class Received:
    """The weights that are being received, or were: one file without a name, which ends with this process."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None

    def write(self, chunk: bytes | memoryview, *, offset: int, size: int) -> dict[str, Any]:
        """Add a part of a file of `size` bytes; the part at 0 begins a new one. Where it can be opened."""
        if offset == 0:
            self.forget()
            self._file = _room(size)
        assert self._file is not None, "a file begins at 0"
        os.pwrite(self._file.fileno(), chunk, offset)
        return {"path": f"/proc/self/fd/{self._file.fileno()}"}

    def forget(self) -> None:
        """Free its room. What is mapped of it stays until it is unmapped."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _room(size: int) -> IO[bytes]:
    """A file of `size` bytes in memory if they fit there, else on disk, whose room is taken."""
    tried: Sequence[Path] = (SHARED_MEMORY, Path(tempfile.gettempdir()))
    for directory in tried:
        with contextlib.suppress(OSError):
            if shutil.disk_usage(directory).free < size:
                continue
            file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - the caller closes it
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError:
                file.close()
                raise
            return file
    raise EngineError(
        f"no room for {size / 1e9:.2f} GB of weights on the engine's machine, neither in "
        f"{' nor in '.join(map(str, tried))}: free some there, or name another directory for temporary "
        "files (TMPDIR)"
    )
