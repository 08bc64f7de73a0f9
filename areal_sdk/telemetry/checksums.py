"""Sizes and checksums of the files of a directory, to find those that changed; the manifest that keeps them.

manifest.json    {"files": {"trainer.json": {"bytes": 812, "crc32": "9ae04c11"}, ...}, "crc32": "..."}

The last checksum is that of `files`. A checkpoint without a manifest is one of an earlier version.
"""

import json
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from areal_sdk.errors import DamagedError

JSON = Any

MANIFEST_FILE = "manifest.json"
SMALL_BYTES = 16 * 2**20

CHUNK_BYTES = 16 * 2**20
NUM_THREADS = 8
"""Number of files that are read at once, for example one for each rank that wrote: checksums do not hold Python's lock."""


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


def write_manifest(directory: Path) -> None:
    """Write the manifest of the files in `directory`, which are complete."""
    names = sorted(path.name for path in directory.iterdir() if path.is_file())
    files = describe(directory, names)
    manifest = {"files": files, "crc32": checksum_of(files)}
    (directory / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def check_files(directory: Path, *, quickly: bool = False) -> None:
    """Raise DamagedError, which names the file, unless all files are unchanged. `quickly` compares the sizes of all
    files, and the content of small files alone, so that no weights are read."""
    try:
        manifest = json.loads((directory / MANIFEST_FILE).read_bytes())
        files = manifest["files"]
        is_whole = manifest["crc32"] == checksum_of(files)
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):  # not JSON any more, or no longer this JSON
        is_whole, files = False, {}
    if not is_whole:
        raise _damaged(directory, f"{MANIFEST_FILE} has changed since it was written")
    most_bytes = SMALL_BYTES if quickly else None
    if (how := first_change(directory, files, most_bytes=most_bytes)) is not None:
        raise _damaged(directory, how)


def _checksum(path: Path) -> int:
    checksum, chunk = 0, bytearray(CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(chunk):
            checksum = zlib.crc32(memoryview(chunk)[:count], checksum)
    return checksum


def _damaged(directory: Path, how: str) -> DamagedError:
    return DamagedError(f"{directory} is damaged: {how}")
