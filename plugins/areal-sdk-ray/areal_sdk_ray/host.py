"""The actor that Ray places: it starts one process of a run on its node, and ends with it.

A process of its own, and not the actor itself, runs the entry: its libraries, its threads and its crash are then none of
Ray's, and it is the same process as on one machine.
"""

import contextlib
import importlib.metadata
import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from areal_sdk.launcher import JOIN, KeptPort

LAST_BYTES = 2000
IDLE_S = 600.0
"""Seconds that a host stays without a running process. The launcher starts one, and frees the host,
long before."""


class RayHost:
    """One process of a run. Ray calls the methods, several at a time."""

    _process: subprocess.Popen[bytes] | None = None
    """The running process. The class has this attribute too, because Ray also makes an object
    without calling `__init__`, and deletes it."""

    def __init__(self) -> None:
        self._log = Path()
        self._port = KeptPort()
        """A port kept as long as this host lives: the process that it starts may listen there at
        any time."""
        watch = threading.Thread(
            target=self._end_alone, args=(os.getppid(),), name="end-alone", daemon=True
        )
        watch.start()

    def facts(self, packages: Sequence[str]) -> dict[str, Any]:
        """This node's address, a free port of it, and the versions of what the run needs here."""
        import ray

        return {
            "address": ray.util.get_node_ip_address(),
            "machine": socket.gethostname(),
            "port": self._port.number,
            "versions": {"Python": minor_version(), **versions(packages)},
        }

    def start(self, arguments: list[str], env: dict[str, str], log: str) -> str:
        """Start the process. Returns its log: `log`, or a file of this node where that is not writable."""
        assert self._process is None
        self._log = _writable(Path(log))
        with open(self._log, "ab", opener=_for_this_user) as file:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-P", "-m", JOIN, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env={**os.environ, **env},
                start_new_session=True,
            )
        return str(self._log)

    def wait(self) -> str:
        """Wait until the process has ended; return how it ended and its last words."""
        assert self._process is not None
        status = self._process.wait()
        how = f"was killed by signal {-status}" if status < 0 else f"exited with code {status}"
        return f"{how}; log: {self._log}; it ends with:\n{self.last_words()}"

    def signal(self, number: int) -> None:
        """Signal the process and what it has started."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _end_alone(self, raylet: int) -> None:
        """End this host and its process when the raylet that started it is gone, or when it is of no use.

        Ray's worker was seen to outlive its raylet by 15 minutes, as long as the method `wait` ran.
        """
        used = time.monotonic()
        while os.getppid() == raylet and time.monotonic() - used < IDLE_S:
            time.sleep(1.0)
            if self._process is not None and self._process.poll() is None:
                used = time.monotonic()
        self.signal(signal.SIGKILL)
        os._exit(os.EX_UNAVAILABLE)

    def last_words(self) -> str:
        try:
            with self._log.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - LAST_BYTES))
                return file.read().decode(errors="replace")
        except OSError:
            return ""


def _for_this_user(path: str, flags: int) -> int:
    """Open a log that only this user may read: what agents print is in it."""
    return os.open(path, flags, 0o600)


def minor_version() -> str:
    """The version of Python without the patch level: a message that one 3.12 sends, every 3.12
    reads."""
    return ".".join(platform.python_version_tuple()[:2])


def versions(packages: Sequence[str]) -> dict[str, str]:
    """The installed version of each package; empty for one that is not there.

    Without the label of a build (`+cpu`): the main process never computes, and its machine may have no GPU.
    """
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            found[package] = ""
    return found


def _writable(log: Path) -> Path:
    """`log`, where this node has its directory (a shared file system), else a file of this node."""
    if log.parent.is_dir() and os.access(log.parent, os.W_OK):
        return log
    import tempfile

    return Path(tempfile.mkdtemp(prefix="areal-sdk-")) / log.name
