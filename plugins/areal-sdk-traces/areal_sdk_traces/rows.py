"""The rows of a file, a directory or standard input: JSON lines, JSON documents, both also as .gz; archives of Inspect."""

import codecs
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import orjson

from areal_sdk import ConfigError
from areal_sdk_traces.archives import ArchiveError, read_archive
from areal_sdk_traces.book import Book, Fate, Place
from areal_sdk_traces.conversation import read_json

STDIN = "-"
_LINES, _DOCUMENTS = (".jsonl", ".ndjson"), (".json",)


@dataclass(frozen=True, slots=True)
class Row:
    """One JSON value of the input."""

    value: Any
    place: Place

    def part(self, value: Any, name: str, book: Book) -> "Row":
        """A row inside this one. The book then follows the parts in place of the whole."""
        place = self.place
        part = Row(value, Place(place.file, place.line, f"{place.part} {name}".strip()))
        book.used([place])
        book.saw(part.place)
        return part


def read_rows(source: str, book: Book, *, stdin: IO[bytes]) -> Iterator[Row]:
    """The rows, which the book sees. A line that is no JSON is damage in the book."""
    for file, raw, is_lines in _files(source, book, stdin=stdin):
        if isinstance(raw, Row):
            book.saw(raw.place)
            yield raw
        else:
            raw = raw.removeprefix(codecs.BOM_UTF8)
            yield from _lines(file, raw, book) if is_lines else _document(file, raw, book)


def _files(source: str, book: Book, *, stdin: IO[bytes]) -> Iterator[tuple[str, bytes | Row, bool]]:
    """Each file with its bytes, or with its one row if it is an archive; and whether it has a row a line."""
    if source == STDIN:
        raw = stdin.read()
        yield "stdin", raw, not _is_document(raw)
        return
    root = Path(source)
    if not root.exists():
        raise ConfigError(f"no file {source}: name a file, a directory, or - for standard input")
    for path in sorted(root.rglob("*")) if root.is_dir() else [root]:
        if not path.is_file():
            continue
        name = _printable(str(path.relative_to(root)) if root.is_dir() else source)
        suffixes = [suffix for suffix in path.suffixes[-2:] if suffix != ".gz"]
        suffix = suffixes[-1] if suffixes else ""
        if suffix == ".eval":
            if (row := _archived(path, Place(name, 0), book)) is not None:
                yield name, row, False
            continue
        if suffix not in (*_LINES, *_DOCUMENTS) and root.is_dir():
            book.write(Place(name, 0), Fate.NO_MESSAGE, "a file of another kind than JSON")
            continue
        try:
            raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        except (OSError, EOFError, zlib.error) as exc:
            book.write(Place(name, 0), Fate.DAMAGED, f"the file cannot be read: {exc}")
            continue
        yield name, raw, suffix in _LINES or not _is_document(raw)


def _archived(path: Path, place: Place, book: Book) -> Row | None:
    """The log in the archive. The book has its damaged samples, or why there is no log."""

    def lost(fault: ArchiveError) -> None:
        book.write(place, Fate.DAMAGED, f"an archive of Inspect: {fault}")

    try:
        return Row(read_archive(path, lost), place)
    except ArchiveError as exc:
        lost(exc)
        return None


def _printable(name: str) -> str:
    """The name of a file as UTF-8, whatever its bytes are."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _is_document(raw: bytes) -> bool:
    """Whether the bytes are one JSON value over several lines, or a list, rather than a value a line."""
    raw = raw.removeprefix(codecs.BOM_UTF8)
    start = raw.lstrip()[:1]
    if start == b"[":
        return True
    first = raw.strip().split(b"\n", 1)[0]
    try:
        orjson.loads(first)
    except orjson.JSONDecodeError:
        return start == b"{" and b"\n" in raw.strip() and not first.rstrip().endswith(b"}")
    return False


def _lines(file: str, raw: bytes, book: Book) -> Iterator[Row]:
    for number, line in enumerate(raw.split(b"\n"), start=1):
        if not line.strip():
            continue
        place = Place(file, number)
        try:
            value = read_json(line)
        except ValueError as exc:
            book.write(place, Fate.DAMAGED, f"no JSON: {exc}")
            continue
        book.saw(place)
        yield Row(value, place)


def _document(file: str, raw: bytes, book: Book) -> Iterator[Row]:
    """The elements of a list with their lines, or the whole document. A document that breaks off gives the elements
    before the break."""
    try:
        text = raw.decode()
    except UnicodeDecodeError as exc:
        book.write(Place(file, raw[: exc.start].count(b"\n") + 1), Fate.DAMAGED, f"no UTF-8: {exc}")
        return
    is_list = text.lstrip().startswith("[")
    at = text.index("[") + 1 if is_list else 0
    decoder = json.JSONDecoder(parse_int=str)
    line, byte, counted = 1, 0, 0
    while (at := _skip(text, at)) < len(text) and not (is_list and text[at] == "]"):
        line += text.count("\n", counted, at)
        byte += len(text[counted:at].encode())
        counted = at
        place = Place(file, line, "" if not is_list else f"byte {byte}")
        try:
            _, at = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError) as exc:
            what = f"no JSON: {exc}; nothing after it can be read"
            book.write(Place(file, line), Fate.DAMAGED, what)
            return
        try:
            value = read_json(text[counted:at])
        except ValueError as exc:  # NaN, half of a surrogate pair
            book.write(place, Fate.DAMAGED, f"no JSON: {exc}")
            continue
        book.saw(place)
        yield Row(value, place)
    if is_list and at >= len(text):
        line = text.count("\n") + 1
        book.write(
            Place(file, line), Fate.DAMAGED, "the list breaks off: rows after it are missing"
        )


def _skip(text: str, at: int) -> int:
    """The next place that is neither space nor a comma."""
    while at < len(text) and text[at] in " \t\r\n,":
        at += 1
    return at
