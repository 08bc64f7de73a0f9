"""Copies the parts of a run directory that its mirror lacks."""

import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from areal_sdk.telemetry.checksums import describe, files_below
from areal_sdk.telemetry.directories import DamagedError
from areal_sdk.telemetry.episode_log import growing_files
from areal_sdk.telemetry.files import read_json, write_atomically
from areal_sdk.telemetry.live.flight import FLIGHT
from areal_sdk.telemetry.mirror.layout import (
    CHECKPOINTS,
    EPISODES,
    FOLDERS,
    ID_FILE,
    MARKER,
    SIGN,
    TOKENS,
    Sign,
    TakenOverError,
    Whole,
    names_there,
    read_sign,
)
from areal_sdk.telemetry.mirror.store import Store
from areal_sdk.telemetry.run_dir import RunDir

_Stamp = tuple[object, ...]
"""Stamp of a file, or of a directory's files. A different stamp means that something was written."""


class Copier:
    """Brings a mirror up to date: `sign` it, then `copy`. A part is copied again only if it has changed."""

    def __init__(self, run_dir: RunDir, store: Store, *, keep: int) -> None:
        """`keep` is the number of latest checkpoints that stay at the mirror."""
        self._run_dir = run_dir
        self._store = store
        self._keep = keep
        self._copied: dict[str, _Stamp] = {}
        """The copied parts by key, each with its stamp at the time of the copy."""
        self._has_leftovers = True
        """An interrupted copy may have left files."""
        self._writer = ""

    def take(self) -> None:
        """Write into the mirror whose it is now. This is the first write there, so it fails if nothing can be written."""
        path = self._run_dir.path / ID_FILE
        own, there = Sign.of(read_json(path)), read_sign(self._store)
        own = Sign(own.id, secrets.token_hex(8), before=None if there is None else there.writer)
        write_atomically(path, own.to_json())
        self._store.write(SIGN, own.to_json())
        self._writer = own.writer

    def has_new_checkpoint(self) -> bool:
        """Whether a checkpoint or exported weights were written since the last copy."""
        return any(self._is_new(path, _stamp_of(path)) for path in self._directories())

    def missing(self) -> list[str]:
        """The parts that the mirror lacks, by names that a user knows."""
        found = [path.name for path in self._directories() if self._is_new(path, _stamp_of(path))]
        return found + [key for key, path in self._books(grows=True) if self._is_new(path, key=key)]

    def copy(self, *, is_last: bool = False) -> bool:
        """Copy new parts, and remove parts that the run directory no longer has. Returns whether everything was copied.
        Files that still grow are copied with a checkpoint, or at the end. Metrics and ledger are copied before the
        marker of a checkpoint, so that a run that resumes from it finds everything that was written before it."""
        self._check_is_writer()
        if self._has_leftovers:
            self._forget_old()
        while (path := self._newest_missing()) is not None:
            self._has_leftovers = True
            self._copy_directory(path)
        self._put_books(grows=is_last)
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
        missing = [path for path in self._directories() if self._is_new(path, _stamp_of(path))]
        return max(missing, key=lambda path: _numbered(path.name), default=None)

    def _directories(self) -> list[Path]:
        """Checkpoints and exported weights. They get their names when they are whole."""
        try:
            return sorted(
                path
                for path in self._run_dir.checkpoints.iterdir()
                if path.is_dir() and not path.name.startswith(".")
            )
        except FileNotFoundError:
            return []

    def _is_new(self, path: Path, stamp: _Stamp | None = None, *, key: str = "") -> bool:
        key = key or f"{CHECKPOINTS}/{path.name}{MARKER}"
        stamp = _stamp(path) if stamp is None else stamp
        return stamp != () and self._copied.get(key) != stamp

    def _copy_directory(self, path: Path) -> None:
        """Copy a checkpoint or exported weights, and then the marker that it is whole."""
        stamp = _stamp_of(path)
        with _held(path) as held:
            whole = Whole.of(path.name, describe(held, files_below(held)))
            there = self._store.sizes(whole.folder)
            for name, about in whole.files.items():
                if there.get(name) != about["bytes"]:
                    self._store.put(held / name, f"{whole.folder}/{name}")
        self._put_books(grows=True)
        if _stamp_of(path) in (stamp, ()):  # else it was replaced while it was copied
            self._check_is_writer()
            self._store.write(whole.marker, whole.to_json())
            self._copied[whole.marker] = stamp

    def _books(self, *, grows: bool) -> Iterator[tuple[str, Path]]:
        """The other files by their keys; with `grows`, also those to which episodes are appended now.

        Episodes come before the index that names their places.
        """
        root = self._run_dir.path
        for path in sorted(root.iterdir()):
            if _is_kept(path) and path.name not in (self._run_dir.live.name, FLIGHT, ID_FILE):
                yield path.name, path
        growing = growing_files(self._run_dir.episodes)
        for folder in FOLDERS:
            for path in sorted(
                (root / folder).glob("*"), key=lambda path: (path.stem, _is_index(path))
            ):
                if _is_kept(path) and (grows or folder != EPISODES or path.stem not in growing):
                    yield f"{folder}/{path.name}", path

    def _put_books(self, *, grows: bool) -> None:
        new: list[tuple[str, Path, _Stamp]] = []
        for key, path in self._books(grows=grows):
            if self._is_new(path, stamp := _stamp(path), key=key):
                new.append((key, path, stamp))
        # An index that is read now names no episode that is appended while the episodes are copied.
        indices = {path: _content(path) for _, path, _ in new if _is_index(path)}
        for key, path, stamp in new:
            try:
                if (content := indices.get(path)) is not None:
                    self._store.write(key, content)
                else:
                    self._store.put(path, key)
            except FileNotFoundError:
                if path.exists():
                    raise
                continue  # the oldest episodes were removed meanwhile
            self._copied[key] = stamp

    def _forget_old(self) -> None:
        """Remove parts that the run directory no longer keeps, and leftovers of an interrupted copy."""
        self._check_is_writer()
        here = {path.name for path in self._directories()}
        there = names_there(self._store)
        latest = {name for _, name in sorted(map(_numbered, there))[-self._keep :]}
        for name in there:
            if name not in here and (name not in latest or _numbered(name)[0] < 0):
                self._remove_marker(name)
        folders = {
            whole.folder for name in names_there(self._store) if (whole := self._whole(name))
        }
        missing = {path.name for path in self._directories() if self._is_new(path, _stamp_of(path))}
        for name, size in self._store.sizes(CHECKPOINTS).items():
            match = _FOLDER.fullmatch(name)
            if size is not None or match is None or f"{CHECKPOINTS}/{name}" in folders:
                continue
            if match["name"] not in missing:  # else its copy goes on
                self._store.remove(f"{CHECKPOINTS}/{name}")
        for folder in (EPISODES, TOKENS):
            kept = {path.name for path in (self._run_dir.path / folder).glob("*")}
            for name in self._store.sizes(folder):
                if name not in kept:
                    self._store.remove(f"{folder}/{name}")
        report = self._run_dir.report
        if not report.exists() and report.name in self._store.sizes():
            self._store.remove(report.name)  # of an end after which the run went on
        self._has_leftovers = False

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


def _is_index(path: Path) -> bool:
    return path.suffix == ".index"


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


def _is_kept(path: Path) -> bool:
    return path.is_file() and not path.name.startswith(".")


def _stamp(path: Path) -> _Stamp:
    """() if the file is gone."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return ()
    return status.st_size, status.st_mtime_ns, status.st_ino


def _stamp_of(directory: Path) -> _Stamp:
    """() if the directory is gone."""
    return tuple((name, _stamp(directory / name)) for name in files_below(directory))
