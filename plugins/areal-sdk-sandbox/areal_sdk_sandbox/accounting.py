"""The accounts of the processes of a sandbox, as `/proc` shows them: their tree, their CPU time, their memory."""

import contextlib
import ctypes
import os
import platform
from collections.abc import Sequence
from typing import NamedTuple

_FILE_KB = 1
"""Kilobytes that the kernel keeps for a file: 785,000 empty files were measured to take 783 MB."""
_SOCKET_KB = 416
"""Kilobytes that one socket keeps for others to read at most: `net.core.wmem_max`, which the kernel
doubles."""
_OWN_MEMORY = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:")
_SHARE_OF_MEMORY = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")
_KCMP = 312 if platform.machine() == "x86_64" else 272
_KCMP_VM = 1
_TICKS = os.sysconf("SC_CLK_TCK")


class Process(NamedTuple):
    """A process as `/proc` shows it. Times are in ticks."""

    pid: int
    parent: int
    began: int
    own: int
    """CPU time of the process's threads."""
    waited: int
    """CPU time of the children whose end the process has read, and of their children."""
    threads: int
    is_over: bool
    """Whether the process is a zombie: it has ended, and its parent has not read its end. A process whose first thread
    has ended is in the same state, but has other threads."""


class CpuTime:
    """CPU time of all processes under the supervisor, ended ones included.

    A process that ends leaves its time to the parent that waits for it. If nobody waits, as where a
    parent ignores SIGCHLD, the kernel forgets the time. Then what the last look saw is added.
    """

    def __init__(self) -> None:
        self.forgotten_s = 0.0
        self._last: dict[tuple[int, int], Process] = {}

    def look(self, machine: "dict[int, Process | None]", tree: list[Process]) -> float:
        """Seconds until now. `tree` was read after `machine`, parents first: so a time that moves to a
        parent meanwhile is not counted twice."""
        now = {(one.pid, one.began): one for one in tree}
        gone = [one for key, one in self._last.items() if key not in now]
        if any(_is_listed(one, machine) for one in gone):
            # One was ending while we read: the next look sees who has its time.
            now, gone = self._last, []
        lost = sum(one.own + one.waited for one in gone)
        kept = (one.waited for key, one in self._last.items() if key in now)
        taken = sum(one.waited for one in now.values()) - sum(kept)
        self.forgotten_s += max(0, lost - taken) / _TICKS
        self._last = now
        return sum(one.own + one.waited for one in now.values()) / _TICKS + self.forgotten_s


def descendants(ancestor: int) -> list[int]:
    """The processes under `ancestor` that have not ended, by process id."""
    machine = processes()
    return [pid for pid in below(machine, ancestor) if (one := machine[pid]) and not one.is_over]


def processes() -> "dict[int, Process | None]":
    """All processes of the machine; None for one that ended meanwhile."""
    return {int(name): process_of(int(name)) for name in os.listdir("/proc") if name.isdigit()}


def process_of(pid: int) -> Process | None:
    fields = _read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not fields:
        return None
    parent, began, threads = int(fields[1]), int(fields[19]), int(fields[17])
    own, waited = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
    is_over = fields[0] in (b"Z", b"X") and threads <= 1
    return Process(pid, parent, began, own, waited, threads, is_over)


def below(machine: "dict[int, Process | None]", ancestor: int) -> list[int]:
    """The processes under `ancestor`, each after its parent."""
    children: dict[int, list[int]] = {}
    for one in filter(None, machine.values()):
        children.setdefault(one.parent, []).append(one.pid)
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        born = children.get(waiting.pop(), [])
        found += born
        waiting += born
    return found


def _is_listed(known: Process, machine: "dict[int, Process | None]") -> bool:
    if known.pid not in machine:
        return False
    listed = machine[known.pid]
    return listed is None or listed.began == known.began


def shared_out_kb(members: Sequence[Process]) -> float:
    """KiB of memory of all processes, each page once: a forked process shares its parent's until one of them writes.

    Infinity if no list of the processes was whole: memory of one that is in no list would count in part only.
    """
    for _ in range(3):
        shares = [_share_kb(one) for one in members]
        now = descendants(os.getpid())
        if set(now) <= {one.pid for one in members}:
            return max(sum(shares), max((memory_kb(one.pid) for one in members), default=0))
        members = [one for pid in now if (one := process_of(pid)) is not None]
    return float("inf")


def _share_kb(one: Process) -> int:
    """KiB of a process's memory, pages that others have too in parts. Before `exec`, a process that was made by `vfork`
    has no memory but its parent's."""
    libc = ctypes.CDLL(None)
    if libc.syscall(_KCMP, one.pid, one.parent, _KCMP_VM, 0, 0) == 0:
        return 0
    shares = _kilobytes(f"/proc/{one.pid}/smaps_rollup", _SHARE_OF_MEMORY)
    tables = _kilobytes(f"/proc/{one.pid}/status", (b"VmPTE:",))
    return sum(shares + tables) if shares and tables else memory_kb(one.pid)


def _kilobytes(path: str, names: tuple[bytes, ...]) -> list[int]:
    lines = _read_bytes(path).splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith(names)]


def memory_kb(pid: int) -> int:
    """KiB of memory that the process sees as its own, page tables included. The first thread that has not ended shows it."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            if shown := _kilobytes(f"/proc/{pid}/task/{thread}/status", _OWN_MEMORY):
                return sum(shown)
    return 0


def is_inside(pid: int, name: str = "tmp") -> bool:
    """Whether the process has this directory of the sandbox, not of the machine. It has its network before."""
    return _num_files(pid, name) is not None


def _num_files(pid: int, name: str) -> int | None:
    """Files in the file system of a directory of the sandbox; None if it is the machine's, as while the sandbox is made.

    One descriptor answers both: the root of a process may change between two looks at a path.
    """
    try:
        directory = os.open(f"/proc/{pid}/root/{name}", os.O_PATH | os.O_DIRECTORY)
    except OSError:
        return None
    try:
        if os.path.exists(f"/{name}") and os.fstat(directory).st_dev == os.stat(f"/{name}").st_dev:
            return None
        system = os.statvfs(directory)
        return system.f_files - system.f_ffree
    finally:
        os.close(directory)


def kernel_kb(pid: int, places: Sequence[str]) -> int:
    """KiB that the kernel may keep for the files in `places` and the sockets of the sandbox that this process is in."""
    num_files = sum(_num_files(pid, name) or 0 for name in places)
    used = _read_bytes(f"/proc/{pid}/net/sockstat").partition(b"used ")[2].split()
    queued = sum(_queued_bytes(f"/proc/{pid}/net/{name}") for name in ("tcp", "tcp6"))
    return num_files * _FILE_KB + int(used[0] if used else 0) * _SOCKET_KB + queued // 1024


def _queued_bytes(path: str) -> int:
    """Bytes that wait in the connections that a table of the kernel lists, as `tx_queue:rx_queue` in hexadecimal."""
    rows = (line.split() for line in _read_bytes(path).splitlines()[1:])
    return sum(int(part, 16) for row in rows for part in row[4].split(b":"))


def _read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""  # it has ended
