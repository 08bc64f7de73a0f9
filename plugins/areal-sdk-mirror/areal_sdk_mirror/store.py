"""The store of a mirror: a folder of a shared file system, or any place that fsspec reaches, such as a bucket.

A file appears there whole or not at all. Every call blocks, and may fail with the errors of its place.
"""

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from areal_sdk.errors import ConfigError, DamagedError

PRIVATE, PRIVATE_DIRECTORY = 0o600, 0o700
"""Permissions of files and directories: for the user alone, as in run directories."""

_PARTIAL = ".partial"
_LOGIN = re.compile(r"(?<=://)(?<!abfs://)(?<!abfss://)[^/@\s]+@")
"""A user with a password. In addresses of Azure, the container stands there."""


class Store(ABC):
    """Files by key, such as `checkpoints/step-000020.json`."""

    def __init__(self, url: str) -> None:
        self.url: str = _LOGIN.sub("", url.rstrip("/"))
        """Address for messages: without a password."""

    def at(self, key: str) -> str:
        """The address of a file, for messages."""
        return f"{self.url}/{key}"

    @abstractmethod
    def put(self, source: Path, key: str) -> None:
        """Copy a file there."""

    @abstractmethod
    def write(self, key: str, content: bytes) -> None: ...

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """The content of a file; None if there is none."""

    @abstractmethod
    def get(self, key: str, target: Path) -> None:
        """Copy a file here. `FileNotFoundError` if there is none."""

    @abstractmethod
    def sizes(self, folder: str = "") -> dict[str, int | None]:
        """The files in a folder with their sizes, and the folders in it with None."""

    @abstractmethod
    def remove(self, key: str) -> None:
        """Remove a file, or a folder with all that is in it. It need not be there."""


class FolderStore(Store):
    """A folder that this machine sees."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path))
        self.path = path

    def put(self, source: Path, key: str) -> None:
        mode = source.stat().st_mode & 0o777
        self._place(key, lambda partial: shutil.copyfile(source, partial), mode=mode)

    def write(self, key: str, content: bytes) -> None:
        self._place(key, lambda partial: partial.write_bytes(content))

    def read(self, key: str) -> bytes | None:
        try:
            return (self.path / key).read_bytes()
        except FileNotFoundError:
            return None

    def get(self, key: str, target: Path) -> None:
        shutil.copyfile(self.path / key, target)

    def sizes(self, folder: str = "") -> dict[str, int | None]:
        try:
            there = [path for path in (self.path / folder).iterdir() if path.suffix != _PARTIAL]
        except FileNotFoundError:
            return {}
        return {path.name: None if path.is_dir() else path.stat().st_size for path in there}

    def remove(self, key: str) -> None:
        path = self.path / key
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    def _place(self, key: str, fill: Callable[[Path], object], *, mode: int = PRIVATE) -> None:
        """Have `fill` write a file beside its place, which reaches the disk and is then renamed."""
        path = self.path / key
        self.path.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        path.parent.mkdir(PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}{_PARTIAL}")
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT, mode))
        fill(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)


class FsspecStore(Store):
    """A place that fsspec reaches. Object stores show a file only once it is whole."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        try:
            import fsspec

            # Another machine may write there: what was listed before is not to be trusted.
            self._fs, root = fsspec.core.url_to_fs(url.rstrip("/"), use_listings_cache=False)
        except ImportError as exc:
            raise ConfigError(
                f"{self.url} cannot be reached ({exc}): install that package"
            ) from exc
        except ValueError as exc:
            raise ConfigError(f"{self.url} cannot be reached: {exc}") from exc
        self._root = root.rstrip("/")

    def put(self, source: Path, key: str) -> None:
        self._fs.put_file(str(source), self._key(key))

    def write(self, key: str, content: bytes) -> None:
        self._fs.pipe_file(self._key(key), content)

    def read(self, key: str) -> bytes | None:
        try:
            content: bytes = self._fs.cat_file(self._key(key))
        except FileNotFoundError:
            return None
        return content

    def get(self, key: str, target: Path) -> None:
        self._fs.get_file(self._key(key), str(target))

    def sizes(self, folder: str = "") -> dict[str, int | None]:
        path = self._key(folder)
        try:
            there = self._fs.ls(path, detail=True)
        except FileNotFoundError:
            return {}
        names = {entry["name"].rstrip("/").rpartition("/")[2]: entry for entry in there}
        names.pop("", None)
        return {
            name: None if entry["type"] == "directory" else entry["size"]
            for name, entry in names.items()
            if entry["name"].strip("/") != path.strip("/")  # some stores list the folder itself
        }

    def remove(self, key: str) -> None:
        with suppress(FileNotFoundError):
            self._fs.rm(self._key(key), recursive=True)

    def _key(self, key: str) -> str:
        return f"{self._root}/{key}".rstrip("/")


def open_store(url: str) -> Store:
    """The store at `url`: a path, or an address such as `s3://bucket/runs/NAME`."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme != "file":
        return FsspecStore(url)
    return FolderStore(Path(rest if separator else url).expanduser().absolute())


CURE = "see to the address, the rights there and the network"


@contextmanager
def reached(what: str) -> Iterator[None]:
    """Raise ConfigError if a store fails in the block, because every store has errors of its own."""
    try:
        yield
    except (ConfigError, DamagedError):
        raise
    except Exception as exc:
        raise ConfigError(
            f"{what} cannot be read or written ({type(exc).__name__}: {exc}): {CURE}"
        ) from exc
