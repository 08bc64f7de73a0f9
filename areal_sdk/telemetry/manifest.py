"""The manifest of a checkpoint, by which a file that was cut short or changed is found.

manifest.json    {"files": {"trainer.json": {"bytes": 812, "crc32": "9ae04c11"}, ...}, "crc32": "..."}

The last checksum is that of `files`. A checkpoint without a manifest is one of an earlier version.
"""

import json
from pathlib import Path

from areal_sdk.telemetry.checksums import checksum_of, describe, first_change
from areal_sdk.telemetry.directories import DamagedError

MANIFEST_FILE = "manifest.json"
SMALL_BYTES = 16 * 2**20


def write_manifest(directory: Path) -> None:
    """Write the manifest of the files in `directory`, which are complete."""
    names = sorted(path.name for path in directory.iterdir() if path.is_file())
    files = describe(directory, names)
    manifest = {"files": files, "crc32": checksum_of(files)}
    (directory / MANIFEST_FILE).write_text(json.dumps(manifest, indent=1), encoding="utf-8")


def check_files(directory: Path, *, quickly: bool = False) -> None:
    """Raise DamagedError, which names the file, unless all files are unchanged. `quickly` compares the sizes of all
    files, and the content of small files alone, so that no weights are read.
    """
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


def _damaged(directory: Path, how: str) -> DamagedError:
    return DamagedError(f"{directory} is damaged: {how}")
