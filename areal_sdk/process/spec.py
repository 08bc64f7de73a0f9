"""The specification of a child process, its log, and the record of its exit."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from areal_sdk.process.frames import JSON

REPEATABLE_MATH = {"MKL_CBWR": "COMPATIBLE", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
"""Variables for `env` that make results repeat bit for bit. Otherwise MKL chooses its kernels by the
alignment of a matrix, and cuBLAS by concurrent work, which changes the last digit."""


SHARE_VARIABLE = "AREAL_SDK_MEMORY_SHARE"
"""Environment variable with the part of its device's memory that a process may take."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """The resources that a launcher of several machines keeps free for a process. On one machine nothing is counted."""

    cpus: float = 1
    gpus: int | None = 0
    """Number of GPUs. None: one GPU if the cluster has any."""


def gpus_of(device: str) -> int | None:
    """The GPUs that a process with `device = "..."` needs: `Reservation.gpus`.

    >>> gpus_of("cpu"), gpus_of("cuda:1"), gpus_of("auto")
    (0, 1, None)
    """
    return {"cpu": 0, "auto": None}.get(device, 1)


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The most memory that a process may take, with all that it starts.

    >>> str(MemoryLimit(64, "a.setting"))
    'memory limit of 64 MB (a.setting)'
    """

    mb: int
    setting: str
    """The setting that raises the limit."""

    def __str__(self) -> str:
        return f"memory limit of {self.mb} MB ({self.setting})"


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process to place somewhere. JSON only: code travels by name, model objects never."""

    name: str
    """`"engine"`, `"trainer-0"`: names the log file and every error."""
    entry: str
    """`"package.module:function"`, called as `function(channel, args)`."""
    args: Mapping[str, JSON] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the process, beyond those that it takes over from the main process."""
    threads: int = 1
    """Threads of the process's math libraries. More than one makes processes that share cores very slow."""
    reserves: Reservation = Reservation()
    python: str = ""
    """The Python of another environment, which has areal-sdk and what the entry needs; empty: this one."""
    memory: MemoryLimit | None = None
    """Memory limit of the child, kept by `spawn` on Linux."""

    @property
    def role(self) -> str:
        """The name without its number.

        >>> ProcessSpec("trainer-0", "package.module:main").role
        'trainer'
        """
        return self.name.partition("-")[0]

    def environment(self) -> dict[str, str]:
        """`env`, and the variables that limit each math library to `threads`."""
        libraries = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "RAYON")
        threads = {f"{library}_NUM_THREADS": str(self.threads) for library in libraries}
        return {**threads, **self.env}


@dataclass(frozen=True, slots=True)
class ChildExit:
    """The way in which a child ended.

    >>> str(ChildExit(code=3))
    'exited with code 3'
    >>> str(ChildExit(signal=signal.SIGKILL))
    'was killed by SIGKILL'
    >>> str(ChildExit(signal=signal.SIGKILL, limit="memory limit"))
    'was killed at its memory limit'
    """

    code: int | None = None
    signal: int | None = None
    limit: str = ""
    """The limit at which the child was killed."""
    reason: str = ""
    """The reason why the connection of a child on another machine ended."""
    last_lines: tuple[str, ...] = ()
    """The last lines of the child's log."""

    def __str__(self) -> str:
        if self.limit:
            return f"was killed at its {self.limit}"
        if self.signal is not None:
            try:
                return f"was killed by {signal.Signals(self.signal).name}"
            except ValueError:
                return f"was killed by signal {self.signal}"
        if self.code is not None:
            return f"exited with code {self.code}"
        return self.reason or "is gone"


NUM_LAST_LINES = 20


def open_log(path: Path) -> BinaryIO:
    """The log at `path`, open for appending. Only this user may read it: what agents print is in it."""
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))


def last_lines(log_path: Path, *, start: int = 0) -> tuple[str, ...]:
    """The end of a log that may be long or missing; nothing from before `start`."""
    try:
        with log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(start, size - 200 * NUM_LAST_LINES))
            text = log.read().decode(errors="replace")
    except OSError:
        return ()
    return tuple(line for line in text.splitlines() if line.strip())[-NUM_LAST_LINES:]
