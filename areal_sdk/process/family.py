"""Finds and ends all processes that a process started, including those that user code started.

A member of a family is a descendant, or has the family's name in its environment. The name finds a
process whose parents are gone, or that is in a session of its own. Members are found on Linux only.
"""

import atexit
import contextlib
import os
import signal
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

FAMILY_VARIABLE = "AREAL_SDK_FAMILY"
KILL_S = 2.0
"""Time for killed members to end."""

_PROC = Path("/proc")
_KERNEL_THREAD = 0x00200000
"""Flag of a process without a program, which has neither command line nor environment."""
_LOOKS_AT_EXEC, _EXEC_S = 20, 0.005
"""Number of looks at a process that is in the middle of `exec`, and seconds between two of them."""
_ENDS_BY_ITSELF = b"multiprocessing.resource_tracker"
"""The command of a process that cleans up shared memory once its family is gone, and then ends by itself."""


def new_family(env: Mapping[str, str]) -> str:
    """A new value of `FAMILY_VARIABLE` for a process started with `env`. It begins with the value in `env`."""
    return f"{env.get(FAMILY_VARIABLE, '')}/{uuid.uuid4().hex}"


def found_family() -> None:
    """Make this process the first of a family that is ended when the interpreter exits.

    Call `end_own_family` before `os._exit`.
    """
    ours = f"{os.environ.get(FAMILY_VARIABLE, '')}/{os.getpid()}-{uuid.uuid4().hex}"
    os.environ[FAMILY_VARIABLE] = ours
    atexit.register(
        end_own_family, grace_s=1.0
    )  # runs after the handlers that user code registers later


def end_own_family(*, grace_s: float = 0.0) -> None:
    """End the family that this process founded. A forked copy of the process has founded none."""
    name = os.environ.get(FAMILY_VARIABLE, "")
    if name.rpartition("/")[2].startswith(f"{os.getpid()}-"):
        end_family(name, ancestor=os.getpid(), grace_s=grace_s)


def end_family(name: str, *, ancestor: int = 0, grace_s: float = 0.0) -> None:
    """End the descendants of `ancestor` and all members of family `name`, except this process.

    Sends SIGTERM, and SIGKILL after `grace_s`. A forked copy of this process gets SIGKILL at once,
    since it handles SIGTERM as this process does. Blocks until all are gone.
    """
    began = time.monotonic()
    asked: set[int] = set()
    ours = _read(os.getpid(), "cmdline")
    while found := members(name, ancestor=ancestor):
        waited_s = time.monotonic() - began
        if waited_s > grace_s + KILL_S:
            return  # the kernel does not end it: give up
        for pid in found:
            is_late = waited_s >= grace_s or _read(pid, "cmdline") == ours
            if is_late or pid not in asked:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
            asked.add(pid)
        time.sleep(0.01)


def members(name: str, *, ancestor: int = 0) -> list[int]:
    """The processes of family `name` and the descendants of `ancestor`, except this process."""
    parents = dict(_living())
    found = []
    for pid in parents.keys() - {os.getpid()}:
        is_member = ancestor in _line(pid, parents) or _bears(pid, name)
        if is_member and _ENDS_BY_ITSELF not in _read(pid, "cmdline"):
            found.append(pid)
    return found


def _living() -> Iterator[tuple[int, int]]:
    """Every process that has not ended, and its parent."""
    if not _PROC.is_dir():
        return
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            fields = _read(int(entry.name), "stat").rpartition(b")")[2].split()
            is_kernels = bool(fields) and int(fields[6]) & _KERNEL_THREAD
            if fields and fields[0] not in (b"Z", b"X") and not is_kernels:
                yield int(entry.name), int(fields[1])


def _line(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    """The ancestors of process `pid`, its parent first."""
    while (pid := parents.get(pid, 0)) > 0:
        yield pid


def _bears(pid: int, name: str) -> bool:
    marks = (v for v in _environment(pid).split(b"\0") if v.startswith(FAMILY_VARIABLE.encode()))
    return any(name.encode() in mark for mark in marks)


def _environment(pid: int) -> bytes:
    """The variables of a process. During `exec` it shows neither variables nor a command line: then look again."""
    for _ in range(_LOOKS_AT_EXEC):
        if found := _read(pid, "environ"):
            return found
        has_line = bool(_read(pid, "cmdline"))
        if (found := _read(pid, "environ")) or has_line:
            return found
        if not _read(pid, "stat"):
            break  # it has ended
        time.sleep(_EXEC_S)
    return b""


def _read(pid: int, what: str) -> bytes:
    try:
        return (_PROC / str(pid) / what).read_bytes()
    except OSError:
        return b""  # it has ended, or belongs to another user


def num_cores() -> int:
    """The number of cores that this process may run on.

    >>> num_cores() >= 1
    True
    """
    is_told = hasattr(os, "sched_getaffinity")  # not on every system
    return len(os.sched_getaffinity(0)) if is_told else os.cpu_count() or 1


def used_by(pid: int) -> tuple[float, float] | None:
    """Seconds of CPU time that process `pid` has used, and MB of memory that it has; None once it is gone.

    >>> min(used_by(os.getpid())) > 0.0
    True
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces
    seconds = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds, int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20
