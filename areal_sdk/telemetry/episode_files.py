"""Files of episodes: pairs that grow, are replaced by new ones, and go when their room is used up.

`000001.episodes` holds records, each compressed alone. `000001.index` holds one short JSON line for each record, with
its place, and lines about what became of episodes. A record is whole once its line is there. The first record of a file is the
dictionary for the others, since siblings and tasks have most of their words in common. A writer never continues the
files of an earlier process, so written bytes are never touched again.
"""

import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from areal_sdk.errors import StorageError
from areal_sdk.telemetry.files import AppendedFile, JsonLines, end_of_last_line, to_json

RECORDS, INDEX = ".episodes", ".index"
OLD_RECORDS = ".jsonl"
"""Suffix of files of records by earlier versions, one record per line. Lines of their index name the file."""

FILE_BYTES = 16 * 2**20
INDEX_BYTES = 2 * 2**20
"""Largest size of an index. A reader of the newest episodes reads one index, so an index is small."""
_PARTS = 8
"""Fewest files into which `keep_bytes` is divided: to make room, only the oldest of them is deleted."""

_LEVEL = 1
"""Level of zlib. Higher levels take three times as long in the main process for a tenth less room."""
_WINDOW_BYTES = 32 * 1024
"""Maximum number of bytes that zlib looks back."""


class PackedFile(AppendedFile):
    """A new file of compressed records. Each is read by its place."""

    _primed: Any = None
    """A compressor that has seen the first record."""

    def append(self, record: bytes) -> tuple[int, int]:
        """Write one record that `pack_large` made; returns where it begins and how long it is."""
        if self._primed is None:
            place = self.append_bytes(
                record if _is_packed(record) else zlib.compress(record, _LEVEL)
            )
            self._primed = zlib.compressobj(_LEVEL, zdict=unpacked(record)[:_WINDOW_BYTES])
            return place
        if not _is_packed(record):
            packing = self._primed.copy()
            record = packing.compress(record) + packing.flush()
        return self.append_bytes(record)


def pack_large(text: bytes) -> bytes:
    """The record of a JSON object. A long one is compressed here, without the words of other records, which would not
    help it. So the process that prepares the record does the work, and not the one process that writes."""
    return zlib.compress(text, _LEVEL) if len(text) > 2 * _WINDOW_BYTES else text


def unpacked(record: bytes) -> bytes:
    """The text from which `pack_large` made a record."""
    return zlib.decompress(record) if _is_packed(record) else record


def _is_packed(record: bytes) -> bool:
    return not record.startswith(b"{")


def read_record(path: Path, offset: int, length: int) -> bytes:
    """The record that an index line names. StorageError if it is gone or damaged."""
    try:
        with path.open("rb") as file:
            words = b""
            if offset and path.suffix != OLD_RECORDS:
                words = zlib.decompressobj().decompress(file.read(2 * _WINDOW_BYTES), _WINDOW_BYTES)
            file.seek(offset)
            record = file.read(length)
    except FileNotFoundError:
        raise StorageError(f"{path} is gone: its run has deleted its oldest episodes") from None
    except zlib.error as exc:  # of the first record, whose words all others use
        raise _damaged(path, 0, str(exc)) from exc
    if path.suffix == OLD_RECORDS:
        return record
    try:
        unpacking = zlib.decompressobj(zdict=words) if offset else zlib.decompressobj()
        text = unpacking.decompress(record)
    except zlib.error as exc:
        raise _damaged(path, offset, str(exc)) from exc
    if not unpacking.eof:
        raise _damaged(path, offset, "it ends too early")
    return text


def _damaged(path: Path, offset: int, how: str) -> StorageError:
    return StorageError(
        f"the episode at byte {offset} of {path} is damaged ({how}): restore the file from a copy"
    )


class EpisodeFiles:
    """Writes pairs of files, of records and of their index, in a directory: numbered, with `prefix` before the number."""

    def __init__(
        self,
        directory: Path,
        *,
        prefix: str,
        keep_bytes: float,
        file_bytes: int = FILE_BYTES,
        on_first_deleted: Callable[[], None] = lambda: None,
    ) -> None:
        self._directory = directory
        self._prefix = prefix
        self._keep_bytes = keep_bytes
        self._file_bytes = int(min(file_bytes, keep_bytes / _PARTS))
        self._on_first_deleted = on_first_deleted
        stems = file_stems(directory, prefix)
        self._sizes = {stem: sum(p.stat().st_size for p in self._pair(stem)) for stem in stems}
        """Bytes of the pairs that are finished, oldest first."""
        self._number = _number(stems[-1]) if stems else 0
        self._num_deleted = count_deleted(directory, prefix)
        self._records: PackedFile | None = None
        self._index: JsonLines | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there are no files yet, neither of this writer nor of an earlier one."""
        return not self._number

    def append(self, text: bytes, about: bytes) -> None:
        """Append a record and its line of the index; `about` is a JSON object without its closing brace."""
        records, index = self._open()
        if records.size >= self._file_bytes or index.size >= min(self._file_bytes, INDEX_BYTES):
            self.close()
            records, index = self._open()
        offset, length = records.append(text)
        index.append_line(b'%b,"offset":%d,"length":%d}' % (about, offset, length))

    def note(self, line: Mapping[str, Any]) -> None:
        """Append a line that belongs to no episode to the index."""
        self._open()[1].append(line)

    def close(self) -> None:
        if self._records is not None and self._index is not None:
            self._sizes[self._records.path.stem] = self._records.size + self._index.size
            self._records.close()
            self._index.close()
        self._records = self._index = None

    def _open(self) -> tuple[PackedFile, JsonLines]:
        if self._records is None or self._index is None:
            going = self._oldest()
            self._number += 1
            stem = self._directory / f"{self._prefix}{self._number:06d}"
            self._records = PackedFile(stem.with_suffix(RECORDS))
            self._index = JsonLines(stem.with_suffix(INDEX))
            is_first = going and not self._num_deleted
            self._num_deleted += sum(map(self._num_episodes, going))
            if self._num_deleted:  # each index says so, since the one before goes too
                self._index.append({"deleted": self._num_deleted})
            for old in going:
                del self._sizes[old]
                for path in self._pair(old):
                    path.unlink()
            if is_first:
                self._on_first_deleted()
        return self._records, self._index

    def _oldest(self) -> list[str]:
        """The files to delete, so that there is room for the next one."""
        total, going = sum(self._sizes.values()) + self._file_bytes, []
        for stem, size in self._sizes.items():
            if total <= self._keep_bytes:
                break
            total -= size
            going.append(stem)
        return going

    def _num_episodes(self, stem: str) -> int:
        with suppress(FileNotFoundError), (self._directory / f"{stem}{INDEX}").open("rb") as index:
            return sum(b'"length":' in line for line in index)
        return 0

    def _pair(self, stem: str) -> list[Path]:
        """The existing files of this name, the index first."""
        paths = (self._directory / f"{stem}{suffix}" for suffix in (INDEX, RECORDS, OLD_RECORDS))
        return [path for path in paths if path.exists()]


def file_stems(directory: Path, prefix: str) -> list[str]:
    """The names of the pairs with this prefix, oldest first, without suffix."""
    pattern = re.compile(rf"{prefix}\d+")
    stems = {path.stem for path in directory.glob(f"{prefix}[0-9]*")}
    return sorted((stem for stem in stems if pattern.fullmatch(stem)), key=_number)


def _number(stem: str) -> int:
    return int(stem.rpartition("-")[2])


def whole_bytes(directory: Path) -> dict[str, int]:
    """Bytes of the whole lines of each index in `directory`, by its file's name without suffix."""
    found = {}
    for path in directory.glob(f"*{INDEX}"):
        with suppress(FileNotFoundError), path.open("rb") as file:
            found[path.stem] = end_of_last_line(file.fileno())
    return found


def count_deleted(directory: Path, prefix: str) -> int:
    """The number of episodes of files with this prefix that were deleted. The newest index has it in its first line."""
    for stem in reversed(file_stems(directory, prefix)):
        with suppress(FileNotFoundError), (directory / f"{stem}{INDEX}").open("rb") as file:
            if (line := file.readline()).endswith(b"\n"):
                first = orjson.loads(line)
                return int(first.get("deleted", 0)) if isinstance(first, dict) else 0
    return 0


def read_lines(path: Path, *, about: str | None = None, until: int | None = None) -> Iterator[Any]:
    """The lines of an index, newest first. If `about` is an id, episodes with another id are left out. `until` is the
    number of bytes that are read.

    A line that is not JSON is None: a machine that went down may leave such a line.
    """
    needle = None if about is None else to_json(about)
    try:
        lines = path.read_bytes()[:until].split(b"\n")[:-1]
    except FileNotFoundError:
        return
    for line in reversed(lines):
        if needle is not None and line.startswith(b'{"id":') and needle not in line:
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError:
            row = None
        yield row
