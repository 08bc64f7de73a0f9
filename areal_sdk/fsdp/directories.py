"""The directory in which a trainer publishes weights: its own, in shared memory if they fit there.

A process that is killed cannot clean up after itself, and shared memory is scarce. So each directory
holds a lock that the kernel releases with its owner, and the next run removes the directories that
nobody holds. (Not a process id: containers may share this memory, but not their processes.)
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from areal_sdk.errors import ConfigError

STATE_FILE = "trainer.json"
"""The file that makes a directory with tensors a checkpoint."""

SHARED_MEMORY = Path("/dev/shm")

_PREFIX = "areal-sdk-"
_LOCK = "owner.lock"


class PublishDir:
    """A directory in memory if `size` bytes fit there, else on disk; exists until `remove`."""

    def __init__(self, *, size: int) -> None:
        remove_orphans()
        is_in_memory = SHARED_MEMORY.is_dir() and shutil.disk_usage(SHARED_MEMORY).free > size
        parent = SHARED_MEMORY if is_in_memory else None
        unnamed = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}", dir=parent))
        self._lock: int | None = os.open(unnamed / _LOCK, os.O_CREAT | os.O_RDWR)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        # Only now may it look like a directory of this SDK: another run might take it for an orphan.
        self.path = unnamed.rename(unnamed.with_name(unnamed.name.removeprefix(".")))

    def remove(self) -> None:
        """Remove the directory. Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def shares_memory(directory: Path, *, boot: str) -> bool:
    """Whether this process shares `directory`, and its memory, with the process of boot `boot` that made it."""
    return boot == this_boot() and directory.is_dir()


def this_boot() -> str:
    """The id of the running kernel, which containers of one machine share and machines do not."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()


def allocate(path: Path, size: int) -> BinaryIO:
    """A new file of `size` bytes. Its room is taken now, since a mapped write without room would end in a bus error."""
    file = path.open("w+b")
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as exc:
        file.close()
        path.unlink()
        raise ConfigError(
            f"no room for {size / 1e9:.2f} GB of published weights in {path.parent}: free some there; "
            "a run that finds too little shared memory at its start takes the directory for "
            "temporary files instead (TMPDIR)"
        ) from exc
    return file


def remove_orphans() -> None:
    """Remove the directories of processes that no longer live, in memory and on disk."""
    parents = (SHARED_MEMORY, Path(tempfile.gettempdir()))
    for lock in chain.from_iterable(parent.glob(f"{_PREFIX}*/{_LOCK}") for parent in parents):
        with contextlib.suppress(OSError):  # gone already, or another user's
            descriptor = os.open(lock, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)
            finally:
                os.close(descriptor)
