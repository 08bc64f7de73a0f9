"""Files that readers always find complete, even if the writer crashed."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import orjson

from areal_sdk.errors import StorageError

PRIVATE, PRIVATE_DIRECTORY = 0o600, 0o700
"""Modes of the files and directories of a run, which hold texts of callers, users and tools."""

_OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MAX_DEPTH = 100
"""Largest depth of JSON that is written: orjson stops at about 250."""
_MAX_DIGIT_BITS = 10_000
"""Largest integer in bits: Python refuses to write longer ones in decimal digits."""
_OPTIONS = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS


def to_json(value: Any, *, indent: bool = False) -> bytes:
    """JSON of dataclasses, numpy values and what users put into a task; NaN becomes null."""
    options = _OPTIONS | (orjson.OPT_INDENT_2 if indent else 0)
    try:
        return orjson.dumps(value, default=_plain, option=options)
    except TypeError:  # what no `default` is asked about: an integer of 65 bits, half a character
        return orjson.dumps(_mended(value), default=_plain, option=options)


def write_atomically(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace `path` in one step: readers see the old content or the new, even after a crash. Without `durable`, a
    power cut may bring back an older content; this is for files that are written all the time."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb", opener=private) as file:
            file.write(data)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as exc:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise cannot_write(path, exc) from exc
    if durable:
        _sync_directory(path.parent)


def private(path: str | Path, flags: int) -> int:
    """An `opener` for `open` which makes files that only this user may read."""
    return os.open(path, flags, PRIVATE)


class AppendedFile:
    """A file that grows at its end by whole records, each in one write. A write that fails leaves no part of its record."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
            self._file = private(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            self.size = self._whole_size(self._file)
            os.ftruncate(self._file, self.size)
            os.lseek(self._file, self.size, os.SEEK_SET)
        except OSError as exc:
            raise cannot_write(path, exc) from exc

    def _whole_size(self, file: int) -> int:
        """The size of `file` without a record that a crash has torn."""
        return os.fstat(file).st_size

    def append_bytes(self, record: bytes) -> tuple[int, int]:
        """Write one record; returns where it begins and how long it is."""
        start = self.size
        try:
            _write_all(self._file, record)
        except OSError as exc:  # no space: leave whole records behind
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, start)
                os.lseek(self._file, start, os.SEEK_SET)
            raise cannot_write(self.path, exc) from exc
        self.size += len(record)
        return start, len(record)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class JsonLines(AppendedFile):
    """An append-only file with one JSON document per line.

    A reader of a growing file sees whole lines and at most one torn tail, which `read_json_lines` leaves
    out. A tail torn by a crash is cut off when writing goes on.
    """

    def _whole_size(self, file: int) -> int:
        return end_of_last_line(file)

    def append(self, record: Any) -> None:
        """Write one line."""
        self.append_line(to_json(record))

    def append_line(self, text: bytes) -> None:
        """Append a record that is JSON already."""
        self.append_bytes(text + b"\n")


def append_json_line(path: Path, record: Any) -> None:
    """Append one record to a file of JSON lines that several processes write."""
    try:
        with open(path, "ab", opener=private) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with contextlib.closing(JsonLines(path)) as lines:
                lines.append(record)
    except OSError as exc:
        raise cannot_write(path, exc) from exc


def cannot_write(path: Path, error: OSError) -> StorageError:
    """The error, with its cure, of a file of the run directory that cannot be written."""
    if error.errno in _OUT_OF_SPACE:
        return StorageError(
            f"no space left on the disk of {path.parent} ({error.strerror} at {path.name}): "
            "free some, then resume the run; its checkpoints are as they were"
        )
    return StorageError(f"{path} cannot be written: {error.strerror or error}")


def read_json_lines(path: Path, *, offset: int = 0) -> Iterator[tuple[int, Any]]:
    """Yield the end of the line and its document for each whole line from `offset` on; nothing if there is no file.

    Lines that are not JSON are skipped: a machine that went down may leave such a line.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            with contextlib.suppress(orjson.JSONDecodeError):
                yield offset, orjson.loads(line)


def read_json(path: Path) -> Any:
    """The document in `path`, or None if there is no such file."""
    try:
        return orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None


def read_if_whole(path: Path) -> dict[str, Any] | None:
    """The mapping in `path`, a file that readers of a run can do without. None if it is missing or half written, as
    after the crash of a machine."""
    try:
        found = read_json(path)
    except orjson.JSONDecodeError:
        return None
    return found if isinstance(found, dict) else None


def _plain(value: Any) -> Any:
    """A JSON value for an object that orjson does not know: tasks may hold any object."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return sorted(value, key=repr)
    return repr(value)


def _mended(value: Any, depth: int = 0) -> Any:
    """A copy of `value`, whatever it is, that orjson accepts: one strange task must not end a run."""
    if depth > _MAX_DEPTH:
        return "..."
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, int) and value.bit_length() >= 64:
        return str(value) if value.bit_length() < _MAX_DIGIT_BITS else hex(value)
    if is_dataclass(value) and not isinstance(value, type):
        public = (f.name for f in fields(value) if not f.name.startswith("_"))  # as orjson does
        value = {name: getattr(value, name) for name in public}
    if isinstance(value, Mapping):
        return {_mended_key(key): _mended(item, depth + 1) for key, item in value.items()}
    if isinstance(value, Set):
        return [_mended(item, depth + 1) for item in _plain(value)]
    if isinstance(value, (list, tuple)):
        return [_mended(item, depth + 1) for item in value]
    return value


def _mended_key(key: Any) -> Any:
    is_simple = key is None or isinstance(key, (str, int, float))
    return _mended(key if is_simple else repr(key))


def end_of_last_line(file: int) -> int:
    """The size of `file` without a torn tail."""
    size = os.fstat(file).st_size
    end = size
    while end > 0:
        start = max(0, end - 65536)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0


def _write_all(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _sync_directory(path: Path) -> None:
    """Make a rename in `path` durable, on file systems that can."""
    with contextlib.suppress(OSError):
        directory = os.open(path, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
