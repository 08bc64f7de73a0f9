"""Sizes and checksums of the files of a directory, to find those that changed."""

import json
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

JSON = Any

CHUNK_BYTES = 16 * 2**20
NUM_THREADS = 8
"""Number of files that are read at once, for example one for each rank that wrote: checksums do not hold Python's
lock."""


def files_below(directory: Path) -> list[str]:
    """The files in `directory` and below, by their relative names."""
    found = (path for path in directory.rglob("*") if path.is_file())
    return sorted(path.relative_to(directory).as_posix() for path in found)


def describe(directory: Path, names: list[str]) -> dict[str, JSON]:
    """Size and checksum of each file: `{"trainer.json": {"bytes": 812, "crc32": "9ae04c11"}}`."""
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        sums = threads.map(_checksum, [directory / name for name in names])
        return {
            name: {"bytes": (directory / name).stat().st_size, "crc32": f"{checksum:08x}"}
            for name, checksum in zip(names, sums, strict=True)
        }


def checksum_of(description: JSON) -> str:
    """The checksum of what `describe` returned."""
    return f"{zlib.crc32(json.dumps(description, sort_keys=True).encode()):08x}"


def first_change(
    directory: Path, written: Mapping[str, JSON], *, most_bytes: int | None = None
) -> str | None:
    """The first file of `written` that has changed, and how; None if none has.

    The content of files of more than `most_bytes` is not read.
    """
    for name, about in written.items():
        path = directory / name
        if not path.is_file():
            return f"{name} is gone"
        if (size := path.stat().st_size) != about["bytes"]:
            return f"{name} has {size} bytes instead of {about['bytes']}"
    read = [n for n, about in written.items() if most_bytes is None or about["bytes"] <= most_bytes]
    for name, found in describe(directory, read).items():
        if found != written[name]:
            return (
                f"the content of {name} has changed since it was written "
                f"(crc32 {found['crc32']} instead of {written[name]['crc32']})"
            )
    return None


def _checksum(path: Path) -> int:
    checksum, chunk = 0, bytearray(CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(chunk):
            checksum = zlib.crc32(memoryview(chunk)[:count], checksum)
    return checksum
