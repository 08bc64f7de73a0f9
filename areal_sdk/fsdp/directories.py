"""Directories that appear whole or not at all, and forgetting old ones. Imports nothing heavy.

Where published weights lie: a directory of this run's own, in shared memory where they fit.

A process that is killed cannot clean up after itself, and shared memory is scarce: so each directory
holds a lock that the kernel releases with its owner, and whoever comes next removes what nobody
holds. (Not a process id: containers may share this memory and not their processes.)
"""

import contextlib
import errno
import fcntl
import logging
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from areal_sdk.errors import ArealError, ConfigError

logger = logging.getLogger(__name__)

STATE_FILE = "trainer.json"
"""What makes a directory a checkpoint, beside its tensors."""

_PARTIAL, _OLD = ".partial", ".old"
_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CheckpointError(ArealError):
    """A checkpoint could not be written or read; earlier ones are as they were."""


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, which becomes `path` when the block ends: synced, then renamed.

    A failure leaves nothing behind, and leaves what was at `path` before as it was.
    """
    partial = begin(path)
    try:
        yield partial
        commit(path)
    except OSError as exc:
        raise cannot_write(path, exc) from exc
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def begin(path: Path) -> Path:
    """An empty directory beside `path`, to fill and `commit`."""
    partial = partial_of(path)
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed here
        partial.mkdir()
    except OSError as exc:
        raise cannot_write(path, exc) from exc
    return partial


def commit(path: Path) -> None:
    """Have what was filled reach the disk, then give it its name."""
    partial = partial_of(path)
    try:
        sync_tree(partial)
        _replace(partial, path)
    except OSError as exc:
        raise cannot_write(path, exc) from exc


def partial_of(path: Path) -> Path:
    return path.with_name(f".{path.name}{_PARTIAL}")


def cannot_write(path: Path, error: OSError) -> CheckpointError:
    if error.errno in _OUT_OF_SPACE:
        why = f"no space left on its disk ({error.strerror}): free some, or move the run directory"
    else:
        why = str(error)
    return CheckpointError(f"{path.name} was not saved, earlier checkpoints stay valid: {why}")


def sync_tree(directory: Path) -> None:
    """Have every file and directory below reach the disk."""
    for root, _, names in os.walk(directory):
        for name in names:
            _sync(Path(root, name))
        _sync(Path(root))


def recover(parent: Path) -> None:
    """Remove what killed processes began in `parent`, and put back what they were replacing.

    Nobody else may be writing there.
    """
    for old in parent.glob(f".*{_OLD}"):
        path = parent / old.name.removeprefix(".").removesuffix(_OLD)
        if not path.exists():  # it was killed between two renames
            old.rename(path)
    for pattern in (f".*{_OLD}", f".*{_PARTIAL}"):
        for leftover in parent.glob(pattern):
            _remove(leftover)


def forget_old(path: Path, *, keep: int) -> list[Path]:
    """Remove all but the newest `keep` siblings of `path` that are numbered as it is.

    `step-000040` has the siblings `step-000020` and `step-000060`; `best` has none, and stays.
    What cannot be removed stays too, and is told. Returns what is gone.
    """
    numbered = re.fullmatch(r"(.*?)(\d+)", path.name)
    if numbered is None:
        return []
    pattern = re.compile(re.escape(numbered[1]) + r"(\d+)")
    found = [
        (int(match[1]), sibling)
        for sibling in path.parent.iterdir()
        if (match := pattern.fullmatch(sibling.name))
    ]
    return [sibling for _, sibling in sorted(found)[:-keep] if _remove(sibling)]


def _remove(directory: Path) -> bool:
    try:
        shutil.rmtree(directory)
    except OSError as exc:
        logger.warning(
            "%s stays where it is (%s): remove it by hand to free its room", directory, exc
        )
    return not directory.exists()


def _replace(new: Path, path: Path) -> None:
    if path.exists():  # a directory cannot be renamed over one that has files
        old = path.with_name(f".{path.name}{_OLD}")
        shutil.rmtree(old, ignore_errors=True)
        path.rename(old)
        new.rename(path)
        shutil.rmtree(old, ignore_errors=True)  # the new one is there: that is what counts
    else:
        new.rename(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
        # Only now may it look like one of ours: another run might take it for an orphan.
        self.path = unnamed.rename(unnamed.with_name(unnamed.name.removeprefix(".")))

    def remove(self) -> None:
        """Idempotent."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def shares_memory(directory: Path, *, boot: str) -> bool:
    """Whether this process sees `directory` of a process of the boot `boot`, and its memory."""
    return boot == this_boot() and directory.is_dir()


def this_boot() -> str:
    """Names the kernel that runs here; containers of one machine share it, machines do not."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def allocate(path: Path, size: int) -> BinaryIO:
    """A new file of `size` bytes, whose room is taken now: a mapped write would be a bus error."""
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
    """Free what owners left behind that no longer live, in memory and on disk."""
    parents = (SHARED_MEMORY, Path(tempfile.gettempdir()))
    for lock in chain.from_iterable(parent.glob(f"{_PREFIX}*/{_LOCK}") for parent in parents):
        with contextlib.suppress(OSError):  # gone already, or another user's
            descriptor = os.open(lock, os.O_RDWR)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)
            finally:
                os.close(descriptor)
