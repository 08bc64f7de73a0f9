"""Archives of Inspect (`.eval`): a ZIP with the log's header and a file for each sample.

Inspect compresses with Zstandard, which `zipfile` reads from Python 3.14 on. Before, the package `zstandard` does.
"""

import zipfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

ZSTANDARD = 93
"""The number of the compression in the format of ZIP."""
_LOCAL_HEADER = 30
"""Bytes of the header before a member, without its name and its extra field."""
_HEADERS = ("header.json", "_journal/start.json")
"""Members with the log without its samples; the second is there while the evaluation goes on."""


class ArchiveError(ValueError):
    """The reason why an archive cannot be read."""


def read_archive(path: Path) -> dict[str, Any]:
    """The log as Inspect writes it in JSON: the header, with the samples in it."""
    try:
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            names = archive.namelist()
            header = next((name for name in _HEADERS if name in names), None)
            if header is None:
                raise ArchiveError("it has no header: it is no log of Inspect")
            log: dict[str, Any] = orjson.loads(_member(archive, file, header))
            log["samples"] = [
                orjson.loads(_member(archive, file, name)) for name in _samples(names)
            ]
            return log
    except (OSError, zipfile.BadZipFile, orjson.JSONDecodeError, EOFError) as exc:
        raise ArchiveError(f"it is damaged: {exc}") from exc


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
