"""Directories that are made once, completely or not at all, also by concurrent processes."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from areal_sdk.errors import ConfigError

LOCK_TIMEOUT_S = 900.0
"""No download of the SDK takes this many seconds: after them, the process that holds the lock is stuck."""


class Cache:
    """`$AREAL_SDK_CACHE`, or `areal-sdk` in the user's cache: `$XDG_CACHE_HOME`, `~/.cache`."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root or _default_root()

    def directory(self, name: str, make: Callable[[Path], object]) -> Path:
        """`root/name`, filled by `make(empty directory)` if it is not there yet."""
        target = self.root / name
        if target.is_dir():
            return target
        try:
            self.root.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise ConfigError(
                f"cannot create the cache {self.root} ({exc.strerror}): "
                "set AREAL_SDK_CACHE to a directory you can write to"
            ) from exc
        with _locked(self.root / f".{name}.lock"):
            if target.is_dir():  # another process made it meanwhile
                return target
            scratch = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=self.root))
            try:
                make(scratch)
                scratch.chmod(0o755)
                scratch.rename(target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return target


def _default_root() -> Path:
    if configured := os.environ.get("AREAL_SDK_CACHE"):
        return Path(configured).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "areal-sdk"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    with path.open("w", encoding="utf-8") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ConfigError(
                        f"another process has held {path} for {LOCK_TIMEOUT_S:.0f} s: "
                        "end it, or set AREAL_SDK_CACHE to another directory"
                    ) from None
                time.sleep(0.2)
        yield  # closing the file releases the lock, also when this process dies
