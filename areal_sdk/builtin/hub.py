"""Rows of a dataset on the Hugging Face hub, or of a directory of data files, read by `datasets` as a stream."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from areal_sdk.builtin.rows import Row, choose_split
from areal_sdk.errors import ConfigError, require_package

_ID = re.compile(
    r"(?P<name>[\w-][\w.-]*/[\w-][\w.-]*)(?::(?P<config>[\w.-]+))?(?:@(?P<revision>[\w./-]+))?"
)
_CURE = (
    "give a file, a directory, or the id of a dataset on the hub, such as openai/gsm8k:main or org/name@revision. "
    "HF_ENDPOINT names another hub, HF_TOKEN opens private datasets"
)

FILE_SUFFIXES = {".jsonl", ".json", ".csv", ".parquet"}
"""A source with one of these suffixes is a file, even if the file does not exist."""


def is_hub_id(source: str) -> bool:
    """Whether `source` could be the id of a dataset on the hub, and names no file or directory here.

    >>> is_hub_id("openai/gsm8k:main"), is_hub_id("gsm8k"), is_hub_id("./data/train"), is_hub_id("data/train.jsonl")
    (True, False, False, False)
    """
    path = Path(source)
    is_file = path.suffix.lower() in FILE_SUFFIXES or path.exists()
    return _ID.fullmatch(source) is not None and not is_file


def read_hub(source: str, *, split: str) -> Iterator[Row]:
    """The rows of `ORG/NAME`, `ORG/NAME:CONFIGURATION` or `ORG/NAME@REVISION`, or of a directory.

    The rows are read as they are needed; the dataset is not downloaded as a whole.
    """
    require_package("datasets", extra="train", needed_for=f"the dataset {source!r}")
    found = _ID.fullmatch(source) if is_hub_id(source) else None
    parts = found.groupdict() if found else {"name": source, "config": None, "revision": None}
    by_split = _load(source, parts)
    name = choose_split(list(by_split), split, where=source)
    number = 0
    try:
        for number, values in enumerate(by_split[name], start=1):
            yield Row(f"{source}, {name} row {number}", number, dict(values))
    except (GeneratorExit, ConfigError):
        raise
    except Exception as exc:
        raise ConfigError(
            f"{source}, {name} after row {number}: {_told(exc)}: to be independent of the hub, save it here with "
            "datasets' save_to_disk and give that directory"
        ) from exc


def _load(source: str, parts: Mapping[str, str | None]) -> Mapping[str, Any]:
    from datasets import load_dataset

    try:
        found: Mapping[str, Any] = load_dataset(
            parts["name"], parts["config"], revision=parts["revision"], streaming=True
        )
        return found
    except Exception as exc:
        raise ConfigError(f"the dataset {source!r} cannot be read: {_told(exc)}: {_CURE}") from exc


def _told(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:400].rstrip(": ")
