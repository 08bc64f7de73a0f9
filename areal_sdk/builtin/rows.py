"""Rows of a file: JSONL, JSON, CSV, Parquet, or a directory that `datasets` saved or reads. Errors name the row."""

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal_sdk.errors import ConfigError, no_such_file, require_package

_MARK = b"\xef\xbb\xbf"
"""A byte order mark, with which some programs begin a text."""
_LONGEST_CELL = 2**31 - 1
_SEVERAL, _STATE = "dataset_dict.json", "state.json"
"""Names of the file that marks a saved dataset: one with several splits, and one with a single split."""
_OTHER_NAMES = {"eval": ("validation", "valid", "val", "dev", "test")}
"""Names that a saved dataset may give to a split of a run, the first choice first."""


@dataclass(frozen=True, slots=True)
class Row:
    """One object or line of a table."""

    where: str
    """Place of the row for errors: the file, and the line or row."""
    number: int
    """Number of the row, from 1 on. Blank lines before a line of JSONL count."""
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The kind of rows that a reader wants, in the words of its errors."""

    noun: str
    example: str = ""
    """A row as it should be written."""

    @property
    def hint(self) -> str:
        return f"; write {self.example}" if self.example else ""


TASKS = Wanted("task")


class NoSplitError(ConfigError):
    """A source with several splits lacks the one that is asked for."""


def has_splits(path: Path) -> bool:
    """Whether `path` may be a directory with several splits: a saved dataset, or files named after their splits."""
    return path.is_dir() and not (path / _STATE).is_file()


def read_rows(path: Path, *, split: str = "train", wanted: Wanted = TASKS) -> Iterator[Row]:
    """The rows of `path`, read as they are needed. ConfigError for what cannot be read.

    `split` chooses from a saved dataset with several splits; a file is one split.
    """
    if not path.exists():
        raise no_such_file(path, f"file of {wanted.noun}s")
    if path.is_dir():
        return _saved_dataset(path, split)
    suffix = path.suffix.lower()
    if suffix in _READERS:
        return _READERS[suffix](path)
    if suffix in (".xlsx", ".xls", ".tsv", ".feather", ".arrow"):
        raise ConfigError(
            f"{path}: {wanted.noun}s are read from JSONL, JSON, CSV and Parquet: convert it"
        )
    return _json_lines(path, wanted) if suffix == ".jsonl" else _json(path, wanted)


def is_saved_dataset(path: Path) -> bool:
    """Whether `path` is a directory that `Dataset.save_to_disk` or `DatasetDict.save_to_disk` wrote."""
    return any((path / name).is_file() for name in (_SEVERAL, _STATE))


def _json(path: Path, wanted: Wanted) -> Iterator[Row]:
    """The rows of a file that holds a list of objects, or one object a line."""
    with path.open("rb") as file:
        begin = file.read(4096).removeprefix(_MARK).lstrip()
    return _json_list(path, wanted) if begin.startswith(b"[") else _json_lines(path, wanted)


def _json_list(path: Path, wanted: Wanted) -> Iterator[Row]:
    import orjson

    try:
        items = orjson.loads(path.read_bytes().removeprefix(_MARK))
    except orjson.JSONDecodeError as exc:
        raise ConfigError(
            f"{path}, line {exc.lineno}: not valid JSON: {exc}{wanted.hint}"
        ) from None
    for number, item in enumerate(items, start=1):
        where = f"{path}, item {number}"
        yield Row(where, number, _object(item, where, wanted))


def _json_lines(path: Path, wanted: Wanted) -> Iterator[Row]:
    import orjson

    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}, line {number}"
            if stripped := line.removeprefix(_MARK).strip():
                try:
                    item = orjson.loads(stripped)
                except orjson.JSONDecodeError as exc:
                    raise ConfigError(f"{where}: not valid JSON: {exc}{wanted.hint}") from None
                yield Row(where, number, _object(item, where, wanted))


def _object(item: object, where: str, wanted: Wanted) -> dict[str, Any]:
    if not isinstance(item, dict):
        kind = type(item).__name__
        raise ConfigError(f"{where}: a {wanted.noun} is a JSON object, not {kind}{wanted.hint}")
    return item


def _csv(path: Path) -> Iterator[Row]:
    """The rows of a CSV file. Every value is text, as it stands in the file."""
    csv.field_size_limit(_LONGEST_CELL)
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            names = reader.fieldnames or ()
            if len(set(names)) != len(names) or not all(names):
                raise ConfigError(
                    f"{path}, line 1: a column needs a name of its own: {list(names)}"
                )
            if len(names) == 1 and (other := next((c for c in ";\t|" if c in names[0]), None)):
                raise ConfigError(
                    f"{path}, line 1: one column {names[0]!r}: its values are separated by {other!r}, and a CSV file "
                    "of areal-sdk by commas: save it with commas"
                )
            for number, values in enumerate(reader, start=1):
                where = f"{path}, row {number} (line {reader.line_num})"
                if None in values or None in values.values():
                    num = sum(v is not None for k, v in values.items() if k is not None)
                    num += len(values.get(None) or ())
                    raise ConfigError(
                        f"{where}: {num} values for {len(names)} columns: put values with a comma or a "
                        "line break into quotes"
                    )
                yield Row(where, number, values)
        except UnicodeDecodeError as exc:
            raise ConfigError(f"{path} is not UTF-8 ({exc}): save the file as UTF-8") from None
        except csv.Error as exc:
            raise ConfigError(f"{path}, line {reader.line_num}: not valid CSV: {exc}") from None


def _parquet(path: Path) -> Iterator[Row]:
    require_package("pyarrow", extra="train", needed_for=f"{path.name} (Parquet)")
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1000):
                for values in batch.to_pylist():
                    number += 1
                    yield Row(f"{path}, row {number}", number, values)
    except pyarrow.ArrowException as exc:
        raise ConfigError(f"{path}: not valid Parquet: {exc}") from None


def _saved_dataset(path: Path, split: str) -> Iterator[Row]:
    """The rows of a directory: a saved dataset (Arrow files and their list), or files that are named after their splits."""
    if (several := path / _SEVERAL).is_file():
        known = list(_read_json(several)["splits"])
        return _saved_dataset(path / choose_split(known, split, where=str(path)), split)
    state = path / _STATE
    if not state.is_file():
        from areal_sdk.builtin.hub import read_hub  # which imports this module

        return read_hub(
            str(path), split=split
        )  # a directory of files that are named after their splits
    require_package("pyarrow", extra="train", needed_for=f"{path.name} (a saved dataset)")
    files = [path / entry["filename"] for entry in _read_json(state)["_data_files"]]
    return _arrow(path, files)


def _arrow(path: Path, files: list[Path]) -> Iterator[Row]:
    import pyarrow

    number = 0
    try:
        for file in files:
            with pyarrow.memory_map(str(file)) as mapped, pyarrow.ipc.open_stream(mapped) as stream:
                for batch in stream:
                    for values in batch.to_pylist():
                        number += 1
                        yield Row(f"{path}, row {number}", number, values)
    except (pyarrow.ArrowException, OSError) as exc:
        raise ConfigError(f"{path}: the saved dataset cannot be read: {exc}") from None


def choose_split(known: Sequence[str], split: str, *, where: str) -> str:
    """The name of `split` in a dataset with the splits `known`."""
    for name in (split, *_OTHER_NAMES.get(split, ())):
        if name in known:
            return str(name)
    raise NoSplitError(
        f"{where} has no split {split!r}, only {', '.join(known)}: name the files after their splits, or give a "
        "file, or a directory, of one of them"
    )


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from None
    return found if isinstance(found, dict) else {}


_READERS: Mapping[str, Callable[[Path], Iterator[Row]]] = {".csv": _csv, ".parquet": _parquet}
