"""Copies the parts of a run directory that its mirror lacks."""

import json
import os
import re
import secrets
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from areal_sdk.errors import DamagedError
from areal_sdk.records import RunPart, describe, list_files, list_weights
from areal_sdk_mirror.layout import (
    CHECKPOINTS,
    ID_FILE,
    MARKER,
    SIGN,
    Sign,
    TakenOverError,
    Whole,
    names_there,
    read_sign,
)
from areal_sdk_mirror.store import FolderStore, Store

REPORT = "report.html"

_Stamp = tuple[object, ...]
"""Stamp of a file, or of a directory's files. A different stamp means that something was written."""


class Copier:
    """Brings a mirror up to date: `sign` it, then `copy`. A part is copied again only if it has changed."""

    def __init__(self, run: Path, store: Store, *, keep: int) -> None:
        """`keep` is the number of latest checkpoints that stay at the mirror."""
        self._run = run
        self._store = store
        self._keep = keep
        self._copied: dict[str, _Stamp] = {}
        """The copied parts by key, each with its stamp at the time of the copy."""
        self._has_leftovers = True
        """An interrupted copy may have left files."""
        self._writer = ""

    def take(self) -> None:
        """Write into the mirror whose it is now. This is the first write there, so it fails if nothing can be written."""
        here = FolderStore(self._run)
        own, there = Sign.of(json.loads(here.read(ID_FILE) or b"")), read_sign(self._store)
        own = Sign(own.id, secrets.token_hex(8), before=None if there is None else there.writer)
        here.write(ID_FILE, own.to_json())
        self._store.write(SIGN, own.to_json())
        self._writer = own.writer

    def has_new_checkpoint(self) -> bool:
        """Whether a checkpoint or exported weights were written since the last copy."""
        return any(True for _ in self._new_weights())

    def missing(self) -> list[str]:
        """The parts that the mirror lacks, by names that a user knows."""
        found = [part.path.name for part in self._new_weights()]
        return found + [
            part.key for part in list_files(self._run) if self._is_new(part.key, _stamp(part.path))
        ]

    def copy(self, *, is_last: bool = False) -> bool:
        """Copy new parts, and remove parts that the run directory no longer has. Returns whether everything was copied.
        Files that still grow are copied with a checkpoint, or at the end. Metrics and ledger are copied before the
        marker of a checkpoint, so that a run that resumes from it finds everything that was written before it."""
        self._check_is_writer()
        if self._has_leftovers:
            self._forget_old()
        while (path := self._newest_missing()) is not None:
            self._has_leftovers = True
            self._copy_weights(path)
        self._put_files(grows=is_last)
        if is_last or self._has_leftovers:
            self._forget_old()
        return not is_last or not self.missing()

    def _check_is_writer(self) -> None:
        there = read_sign(self._store)
        if there is None:
            raise FileNotFoundError(f"{self._store.at(SIGN)} is gone")
        if there.writer != self._writer:
            raise TakenOverError("the run goes on elsewhere, or another run has taken this mirror")

    def _newest_missing(self) -> Path | None:
        """The newest checkpoint that the mirror lacks. It is copied first, so that a slow mirror does not hold only
        old ones."""
        paths = (part.path for part in self._new_weights())
        return max(paths, key=lambda path: _numbered(path.name), default=None)

    def _new_weights(self) -> Iterator[RunPart]:
        for part in list_weights(self._run):
            if self._is_new(f"{part.key}{MARKER}", _stamp_of(part.path)):
                yield part

    def _is_new(self, key: str, stamp: _Stamp) -> bool:
        return stamp != () and self._copied.get(key) != stamp

    def _copy_weights(self, path: Path) -> None:
        """Copy a checkpoint or exported weights, and then the marker that it is whole."""
        stamp = _stamp_of(path)
        with _held(path) as held:
            whole = Whole.of(path.name, describe(held, _files_below(held)))
            there = self._store.sizes(whole.folder)
            for name, about in whole.files.items():
                if there.get(name) != about["bytes"]:
                    self._store.put(held / name, f"{whole.folder}/{name}")
        self._put_files(grows=True)
        if _stamp_of(path) in (stamp, ()):  # else it was replaced while it was copied
            self._check_is_writer()
            self._store.write(whole.marker, whole.to_json())
            self._copied[whole.marker] = stamp

    def _put_files(self, *, grows: bool) -> None:
        """Copy the new files, with `grows` also those to which episodes are appended now."""
        new = [
            (part, stamp)
            for part in list_files(self._run)
            if grows or not part.grows
            if self._is_new(part.key, stamp := _stamp(part.path))
        ]
        # An index that is read now names no episode that is appended while the episodes are copied.
        indices = {part.key: _content(part.path) for part, _ in new if part.is_index}
        for part, stamp in new:
            try:
                if (content := indices.get(part.key)) is not None:
                    self._store.write(part.key, content)
                else:
                    self._store.put(part.path, part.key)
            except FileNotFoundError:
                if part.path.exists():
                    raise
                continue  # the oldest episodes were removed meanwhile
            self._copied[part.key] = stamp

    def _forget_old(self) -> None:
        """Remove parts that the run directory no longer keeps, and leftovers of an interrupted copy."""
        self._check_is_writer()
        here = {part.path.name for part in list_weights(self._run)}
        there = names_there(self._store)
        latest = {name for _, name in sorted(map(_numbered, there))[-self._keep :]}
        for name in there:
            if name not in here and (name not in latest or _numbered(name)[0] < 0):
                self._remove_marker(name)
        folders = {
            whole.folder for name in names_there(self._store) if (whole := self._whole(name))
        }
        missing = {part.path.name for part in self._new_weights()}
        for name, size in self._store.sizes(CHECKPOINTS).items():
            match = _FOLDER.fullmatch(name)
            if size is not None or match is None or f"{CHECKPOINTS}/{name}" in folders:
                continue
            if match["name"] not in missing:  # else its copy goes on
                self._store.remove(f"{CHECKPOINTS}/{name}")
        self._forget_files({part.key for part in list_files(self._run)})
        self._has_leftovers = False

    def _forget_files(self, kept: Collection[str]) -> None:
        """Remove files below folders that the run has removed, and the report of an end after which it went on."""
        there = self._store.sizes()
        keys = [name for name in there if name == REPORT]
        for folder in (name for name, size in there.items() if size is None):
            if folder != CHECKPOINTS:
                keys += [f"{folder}/{name}" for name in self._store.sizes(folder)]
        for key in keys:
            if key not in kept:
                self._store.remove(key)

    def _whole(self, name: str) -> Whole | None:
        """None if its marker is damaged, too: it is copied again."""
        try:
            return Whole.read(self._store, name)
        except DamagedError:
            self._remove_marker(name)
            return None

    def _remove_marker(self, name: str) -> None:
        self._store.remove(f"{CHECKPOINTS}/{name}{MARKER}")
        self._copied.pop(f"{CHECKPOINTS}/{name}{MARKER}", None)  # somebody may put it back


_FOLDER = re.compile(r"(?P<name>.+)\.[0-9a-f]{8}")


@contextmanager
def _held(path: Path) -> Iterator[Path]:
    """The files of a directory, held so that they can be copied even if the directory is removed meanwhile."""
    held = path.with_name(f".{path.name}.mirrored")
    shutil.rmtree(held, ignore_errors=True)
    try:
        try:
            shutil.copytree(path, held, copy_function=os.link)
        except (OSError, shutil.Error):  # a file system without links
            yield path
        else:
            yield held
    finally:
        shutil.rmtree(held, ignore_errors=True)


def _content(path: Path) -> bytes | None:
    """None if the file is gone."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _numbered(name: str) -> tuple[int, str]:
    """The number of a checkpoint, -1 for exported weights, with the name."""
    match = re.fullmatch(r"\D*(\d+)", name)
    return (int(match[1]) if match else -1), name


def _files_below(directory: Path) -> list[str]:
    """The files in a directory and below, by their relative names."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path.relative_to(directory).as_posix() for path in found)


def _stamp(path: Path) -> _Stamp:
    """() if the file is gone."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ino


def _stamp_of(directory: Path) -> _Stamp:
    """() if the directory is gone."""
    return tuple((name, _stamp(directory / name)) for name in _files_below(directory))
