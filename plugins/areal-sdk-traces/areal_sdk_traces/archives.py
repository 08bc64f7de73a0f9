"""Archives of Inspect (`.eval`): a ZIP with the log's header and a file for each sample.

Inspect compresses with Zstandard, which `zipfile` reads from Python 3.14 on. Before, the package `zstandard` does.
"""

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from areal_sdk_traces.conversation import read_json

ZSTANDARD = 93
"""The number of the compression in the format of ZIP."""
_LOCAL_HEADER = 30
"""Bytes of the header before a member, without its name and its extra field."""
_HEADERS = ("header.json", "_journal/start.json")
"""Members with the log without its samples; the second is there while the evaluation goes on."""

_DAMAGED = (OSError, zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError)
"""The faults of a member that is damaged or, as RuntimeError, encrypted."""


class ArchiveError(ValueError):
    """The reason why an archive cannot be read."""


def read_archive(path: Path, lost: Callable[[ArchiveError], None]) -> dict[str, Any]:
    """The log as Inspect writes it in JSON: the header, with the samples in it. `lost` is told of each damaged sample."""
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            names = archive.namelist()
            header = next((name for name in _HEADERS if name in names), None)
            if header is None:
                raise ArchiveError("it has no header: it is no log of Inspect")
            log = _value(archive, file, header)
            if not isinstance(log, dict):
                raise ArchiveError("its header is not an object")
            samples = []
            for name in _samples(names):
                try:
                    samples.append(_value(archive, file, name))
                except ArchiveError as exc:
                    lost(exc)
            return {**log, "samples": samples}
    except (OSError, zipfile.BadZipFile, UnicodeDecodeError, struct.error) as exc:
        raise ArchiveError(f"it is damaged: {exc}") from exc


def _value(archive: zipfile.ZipFile, file: Any, name: str) -> Any:
    try:
        return read_json(_member(archive, file, name))
    except ArchiveError:
        raise
    except (*_DAMAGED, ValueError) as exc:
        raise ArchiveError(f"{name} is damaged: {exc}") from exc


def _samples(names: list[str]) -> Iterator[str]:
    return (name for name in names if name.startswith("samples/") and name.endswith(".json"))


def _member(archive: zipfile.ZipFile, file: Any, name: str) -> bytes:
    info = archive.getinfo(name)
    try:
        return archive.read(info)
    except NotImplementedError:
        if info.compress_type != ZSTANDARD:
            raise ArchiveError(f"{name} has compression {info.compress_type}") from None
    file.seek(info.header_offset)
    header = file.read(_LOCAL_HEADER)
    lengths = (int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
    file.seek(sum(lengths), 1)
    return _decompressed(file.read(info.compress_size), name)


def _decompressed(packed: bytes, name: str) -> bytes:
    try:
        zstandard = import_module("zstandard")
    except ModuleNotFoundError:
        cure = 'pip install "areal-sdk-traces[inspect]"'
        raise ArchiveError(f"it is compressed with Zstandard: {cure}") from None
    try:
        plain: bytes = zstandard.ZstdDecompressor().decompressobj().decompress(packed)
    except zstandard.ZstdError as exc:
        raise ArchiveError(f"{name} is damaged: {exc}") from exc
    return plain
