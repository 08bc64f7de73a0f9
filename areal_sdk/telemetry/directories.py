"""Directories of a run that appear whole or not at all, such as checkpoints and exported weights.

A directory is filled beside its place, reaches the disk, and is then renamed. An address, such as
`s3://...`, is no directory: code that reads a run refuses it.
"""

import errno
import logging
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from areal_sdk.errors import CheckpointError, ConfigError

logger = logging.getLogger(__name__)

_PARTIAL, _OLD = ".partial", ".old"
OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A directory to fill, which becomes `path` when the block ends: synced, then renamed.

    A failure leaves nothing behind, and leaves an earlier directory at `path` unchanged.
    """
    partial = begin_directory(path)
    try:
        yield partial
        commit_directory(path)
    except OSError as exc:
        raise cannot_write(path, exc) from exc
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def begin_directory(path: Path) -> Path:
    """An empty directory beside `path`, to fill and then `commit_directory`."""
    partial = partial_of(path)
    try:
        partial.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)  # of a process that was killed here
        partial.mkdir()
    except OSError as exc:
        raise cannot_write(path, exc) from exc
    return partial


def commit_directory(path: Path) -> None:
    """Have the filled directory reach the disk, then give it its name."""
    partial = partial_of(path)
    try:
        sync_tree(partial)
        _replace(partial, path)
    except OSError as exc:
        raise cannot_write(path, exc) from exc


def partial_of(path: Path) -> Path:
    return path.with_name(f".{path.name}{_PARTIAL}")


def cannot_write(path: Path, error: OSError) -> CheckpointError:
    if error.errno in OUT_OF_SPACE:
        why = f"no space left on its disk ({error.strerror}): free some, or write elsewhere"
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
    """Clean up after processes that were killed while they wrote a directory in `parent`: put back the directories that
    they had set aside, and remove unfinished ones. No other process may be writing there."""
    for old in parent.glob(f".*{_OLD}"):
        path = parent / old.name.removeprefix(".").removesuffix(_OLD)
        if not path.exists():  # it was killed between two renames
            old.rename(path)
    for pattern in (f".*{_OLD}", f".*{_PARTIAL}"):
        for leftover in parent.glob(pattern):
            _remove(leftover)


def forget_old(path: Path, *, keep: int) -> list[Path]:
    """Remove all but the newest `keep` siblings of `path` that are numbered as it is.

    `step-000040` has the siblings `step-000020` and `step-000060`; `best` has none, and stays. A directory that
    cannot be removed stays too, and is logged. Returns the removed ones.
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


def is_address(text: str) -> bool:
    """Whether the text is an address and not a path, even if it went through `Path`.

    >>> [is_address(text) for text in ("s3://bucket/run", "s3:/bucket/run", "runs/a", "C.py::a")]
    [True, True, False, False]
    """
    return re.match(r"[a-z][a-z0-9+.-]+:/", text) is not None


def is_mirror(run: str | Path) -> bool:
    """Whether `run` names the mirror of a run and not a run directory."""
    return is_address(str(run)) or (Path(run) / "mirror.json").is_file()


def refuse_address(text: str) -> None:
    """Raise ConfigError for an address in place of a directory. It may be the mirror of a run."""
    if is_address(text):
        url = re.sub(":/+", "://", text, count=1)
        raise ConfigError(f"{url} is no directory: to read its run, areal-sdk fetch {url}")
