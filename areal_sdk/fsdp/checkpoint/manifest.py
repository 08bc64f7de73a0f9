"""The manifest of a checkpoint: a file that was cut short or has other bits is found, by name.

manifest.json    {"files": {"trainer.json": {"bytes": 812, "crc32": "9ae04c11"}, ...}, "crc32": "..."}

The last checksum is that of `files`. A checkpoint without a manifest is one of an earlier version.
"""

import json
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from areal_sdk.telemetry.directories import DamagedError

JSON = Any

MANIFEST_FILE = "manifest.json"

CHUNK_BYTES = 16 * 2**20
NUM_THREADS = 8
"""Files that are read at once, one for each rank that wrote: a checksum takes no lock of Python's."""


def write_manifest(directory: Path) -> None:
    """Write down the files in `directory`, which are complete."""
    files = _describe(path for path in directory.iterdir() if path.is_file())
    manifest = {"files": files, "crc32": _checksum_of(files)}
    (directory / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1))


def check_files(directory: Path) -> None:
    """DamagedError, which names the file, unless all files are as they were written."""
    try:
        manifest = json.loads((directory / MANIFEST_FILE).read_bytes())
        files = manifest["files"]
        is_whole = manifest["crc32"] == _checksum_of(files)
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError):  # not JSON any more, or no longer this JSON
        is_whole, files = False, {}
    if not is_whole:
        raise _damaged(directory, f"{MANIFEST_FILE} has changed since it was written")
    for name, written in files.items():
        path = directory / name
        if not path.is_file():
            raise _damaged(directory, f"{name} is gone")
        if (size := path.stat().st_size) != written["bytes"]:
            raise _damaged(directory, f"{name} has {size} bytes instead of {written['bytes']}")
    for name, found in _describe(directory / name for name in files).items():
        if found != files[name]:
            raise _damaged(
                directory,
                f"the content of {name} has changed since it was written "
                f"(crc32 {found['crc32']} instead of {files[name]['crc32']})",
            )


def _describe(paths: Iterable[Path]) -> dict[str, JSON]:
    files = sorted(paths)
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        sums = threads.map(_checksum, files)
        return {
            path.name: {"bytes": path.stat().st_size, "crc32": f"{checksum:08x}"}
            for path, checksum in zip(files, sums, strict=True)
        }


def _checksum(path: Path) -> int:
    checksum, chunk = 0, bytearray(CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(chunk):
            checksum = zlib.crc32(memoryview(chunk)[:count], checksum)
    return checksum


def _checksum_of(files: JSON) -> str:
    return f"{zlib.crc32(json.dumps(files, sort_keys=True).encode()):08x}"


def _damaged(directory: Path, how: str) -> DamagedError:
    return DamagedError(f"{directory} is damaged: {how}")
