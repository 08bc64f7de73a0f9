"""Runs one program in a sandbox and holds it to its limits, as a script in a process of its own.

The supervisor runs outside the sandbox, so the program can neither stop it nor write its report. The
order comes on stdin: a line of JSON, then the program's own input. The report goes to stdout: a line of
JSON, then the program's output. If stdin ends before the report, nobody waits for the report any more.
"""

import contextlib
import ctypes
import json
import os
import platform
import resource
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, BinaryIO, NamedTuple

LOOK_EVERY_S = 0.05
"""Seconds between two looks at the processes."""
_SHARE_OF_LOOKING = 20
"""Factor by which a pause exceeds the look before it: looking takes at most a twentieth of a
core, however many processes a machine has."""
_CERTAINLY_PASSED = 1.5
"""Factor on the limit of memory that covers the files and libraries of a process. A process above
it has passed the limit."""
_KILL_S = 10.0
"""Seconds for the kernel to end processes that were killed; one in a slow system call takes its time."""
_FILE_KB = 1
"""Kilobytes that the kernel keeps for a file: 785,000 empty files were measured to take 783 MB."""
_SOCKET_KB = 416
"""Kilobytes that one socket keeps for others to read at most: `net.core.wmem_max`, which the kernel
doubles."""
_PR_SET_CHILD_SUBREAPER = 36
_SIGXCPU_EXIT = 128 + signal.SIGXCPU
_OWN_MEMORY = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:")
_SHARE_OF_MEMORY = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")
_KCMP = 312 if platform.machine() == "x86_64" else 272
_KCMP_VM = 1
_TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        control = sys.stdin.buffer
        order: dict[str, Any] = json.loads(control.readline())
        stdin = control.read(int(order["stdin_bytes"]))
        supervisor = Warden(order, stdin, control.fileno())
        report = supervisor.run()
        sys.stdout.buffer.write(json.dumps(report).encode() + b"\n")
        sys.stdout.buffer.write(bytes(supervisor.stdout) + bytes(supervisor.stderr))
        sys.stdout.buffer.flush()


class Warden:
    """One program from its start to the end of all its processes."""

    def __init__(self, order: dict[str, Any], stdin: bytes, control: int) -> None:
        self._order = order
        self._limits = order["limits"]
        self._stdin = memoryview(stdin)
        self._control = control
        self.stdout = bytearray()
        self.stderr = bytearray()
        self._status = bytearray()
        self._limit = ""
        self._peak_mb = 0.0
        self._cpu_s = 0.0
        self._cpu = CpuTime()
        self._next_look = 0.0
        self._witness = 0
        """A process that sees the sandbox from inside: bubblewrap's own, which lives as long."""
        self._selector = selectors.DefaultSelector()

    def run(self) -> dict[str, Any]:
        """The report. Nothing that the program started runs any more."""
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        began = time.monotonic()
        process = self._start()
        try:
            self._watch(process.pid, began + self._limits["wall_s"])
        finally:
            is_over = _end_all(process, int(self._order["own_uid"]))
        seconds = time.monotonic() - began
        while self._read_what_is_there():
            pass
        code = process.wait() if is_over else None
        if not self._limit and code in (-signal.SIGXCPU, _SIGXCPU_EXIT):
            self._limit = "cpu"
        problem = "" if self._limit else self._why_not_started()
        if not is_over:
            problem = f"its processes did not end within {_KILL_S:g} s of SIGKILL"
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        self._cpu_s = max(self._cpu_s, ended.ru_utime + ended.ru_stime + self._cpu.forgotten_s)
        if code and not self._limit:
            self._note_memory_of_the_dead(ended.ru_maxrss / 1024)
        return {
            "code": code,
            "limit": self._limit,
            "seconds": seconds,
            "cpu_s": self._cpu_s,
            "peak_memory_mb": self._peak_mb,
            "problem": problem,
            "stdout_bytes": len(self.stdout),
        }

    def _start(self) -> "subprocess.Popen[bytes]":
        status, status_end = os.pipe()
        launch = {**self._order["launch"], "status_fd": status_end}
        words = [*self._order["outer"], *self._order["launcher"], json.dumps(launch)]
        process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._order["env"],
            pass_fds=[status_end, *self._order["pass_fds"]],
            start_new_session=True,
        )
        for descriptor in (status_end, *self._order["pass_fds"]):
            os.close(descriptor)
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        for pipe, kept in ((process.stdout, self.stdout), (process.stderr, self.stderr)):
            self._listen(pipe.fileno(), kept)
        self._listen(status, self._status)
        os.set_blocking(process.stdin.fileno(), False)
        self._selector.register(process.stdin, selectors.EVENT_WRITE, process.stdin)
        self._selector.register(self._control, selectors.EVENT_READ)
        return process

    def _listen(self, descriptor: int, kept: bytearray) -> None:
        os.set_blocking(descriptor, False)
        self._selector.register(descriptor, selectors.EVENT_READ, kept)

    def _watch(self, pid: int, deadline: float) -> None:
        """Return when the program has ended, has met a limit, or nobody waits for it any more."""
        end = os.pidfd_open(pid)
        self._selector.register(end, selectors.EVENT_READ)
        while not self._limit:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                self._limit = "wall"
                return
            for key, _ in self._selector.select(min(left_s, LOOK_EVERY_S)):
                if key.fd in (end, self._control):
                    self._look(pid)
                    self._selector.unregister(end)
                    return
                if isinstance(key.data, bytearray):
                    self._read(key.fd, key.data)
                else:
                    self._write(key.data)
            if time.monotonic() >= self._next_look:
                self._look(pid)

    def _write(self, pipe: BinaryIO) -> None:
        try:
            sent = os.write(pipe.fileno(), self._stdin[: 1 << 16]) if self._stdin else 0
        except BrokenPipeError:
            self._stdin = self._stdin[:0]
            sent = 0
        self._stdin = self._stdin[sent:]
        if not self._stdin:
            self._selector.unregister(pipe)
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    def _read(self, descriptor: int, kept: bytearray) -> bool:
        """Whether something came. What passes the limit is not kept."""
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            self._selector.unregister(descriptor)
            return False
        kept += data
        most = self._limits["output_kb"] << 10
        over = len(self.stdout) + len(self.stderr) - most
        if over > 0:
            self._limit = self._limit or "output"
            del kept[len(kept) - over :]
            return False
        return True

    def _read_what_is_there(self) -> bool:
        pipes = [key for key in self._selector.get_map().values() if type(key.data) is bytearray]
        return any(self._read(key.fd, key.data) for key in pipes)

    def _look(self, pid: int) -> None:
        """Compare what the processes use with the limits."""
        began = time.monotonic()
        machine = _processes()
        tree = [one for pid in _below(machine, os.getpid()) if (one := _process(pid)) is not None]
        members = [one for one in tree if not one.is_over]
        kernel_mb = self._kernel_mb([one.pid for one in members])
        memory_mb = kernel_mb + sum(_memory_kb(one.pid) for one in members) / 1024
        if memory_mb > self._peak_mb:  # perhaps it counts memory twice
            memory_mb = min(memory_mb, kernel_mb + _shared_out_kb(members) / 1024)
        self._peak_mb = max(self._peak_mb, memory_mb)
        self._cpu_s = max(self._cpu_s, self._cpu.look(machine, tree))
        num_own = 2 if self._order["outer"] else 0  # of bubblewrap
        if memory_mb > self._limits["memory_mb"]:
            self._limit = "memory"
        elif sum(one.threads for one in members) - num_own > self._limits["processes"]:
            self._limit = "processes"
        elif self._cpu_s > self._limits["cpu_s"]:
            self._limit = "cpu"
        now = time.monotonic()
        self._next_look = now + max(LOOK_EVERY_S, _SHARE_OF_LOOKING * (now - began))

    def _kernel_mb(self, members: list[int]) -> float:
        """Megabytes that the kernel keeps for files and sockets. The sandbox has file systems and a
        network of its own. Under limits alone these are the machine's, where others have files and
        sockets too."""
        if not self._order["outer"]:
            return 0.0
        # The number of a witness that has ended may be that of a process of another sandbox by now.
        known = sorted(members, key=lambda pid: pid != self._witness)
        self._witness = next((pid for pid in known if _is_inside(pid)), 0)
        places = ("tmp", "dev/shm", *(one[1:] for one in self._order["writable"]))
        return _kernel_kb(self._witness, places) / 1024 if self._witness else 0.0

    def _note_memory_of_the_dead(self, peak_mb: float) -> None:
        """A program that allocates fast fails at the kernel's limit before anybody has looked."""
        if peak_mb > _CERTAINLY_PASSED * self._limits["memory_mb"]:
            self._limit = "memory"
            self._peak_mb = max(self._peak_mb, peak_mb)

    def _why_not_started(self) -> str:
        if self._status == b"started\n":
            return ""
        said = self._status.removeprefix(b"started\n") or self.stderr or b"it wrote nothing"
        return bytes(said[-500:]).decode(errors="replace").strip()


class Process(NamedTuple):
    """A process as `/proc` shows it. Times are in ticks."""

    pid: int
    parent: int
    began: int
    own: int
    """CPU time of its threads."""
    waited: int
    """CPU time of the children that it has waited for, and of theirs."""
    threads: int
    is_over: bool
    """Whether the process waits to be waited for. A process whose first thread ended looks like
    that too, but has others."""


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
    machine = _processes()
    return [pid for pid in _below(machine, ancestor) if (one := machine[pid]) and not one.is_over]


def _processes() -> "dict[int, Process | None]":
    """All processes of the machine; None for one that ended meanwhile."""
    return {int(name): _process(int(name)) for name in os.listdir("/proc") if name.isdigit()}


def _process(pid: int) -> Process | None:
    fields = _read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    if not fields:
        return None
    parent, began, threads = int(fields[1]), int(fields[19]), int(fields[17])
    own, waited = sum(map(int, fields[11:13])), sum(map(int, fields[13:15]))
    is_over = fields[0] in (b"Z", b"X") and threads <= 1
    return Process(pid, parent, began, own, waited, threads, is_over)


def _below(machine: "dict[int, Process | None]", ancestor: int) -> list[int]:
    """The processes under `ancestor`, each after its parent."""
    children: dict[int, list[int]] = {}
    for one in filter(None, machine.values()):
        children.setdefault(one.parent, []).append(one.pid)
    found: list[int] = []
    waiting = [ancestor]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def _is_listed(known: Process, machine: "dict[int, Process | None]") -> bool:
    if known.pid not in machine:
        return False
    listed = machine[known.pid]
    return listed is None or listed.began == known.began


def _shared_out_kb(members: Sequence[Process]) -> float:
    """KiB of memory of all processes, each page once: a forked process shares its parent's until one of them writes.

    Infinity if no list of the processes was whole: memory of one that is in no list would count in part only.
    """
    for _ in range(3):
        shares = [_share_kb(one) for one in members]
        below = descendants(os.getpid())
        if set(below) <= {one.pid for one in members}:
            return max(sum(shares), max((_memory_kb(one.pid) for one in members), default=0))
        members = [one for pid in below if (one := _process(pid)) is not None]
    return float("inf")


def _share_kb(one: Process) -> int:
    """KiB of a process's memory, pages that others have too in parts. Before `exec`, a process that was made by `vfork`
    has no memory but its parent's."""
    libc = ctypes.CDLL(None)
    if libc.syscall(_KCMP, one.pid, one.parent, _KCMP_VM, 0, 0) == 0:
        return 0
    shares = _kilobytes(f"/proc/{one.pid}/smaps_rollup", _SHARE_OF_MEMORY)
    tables = _kilobytes(f"/proc/{one.pid}/status", (b"VmPTE:",))
    return sum(shares + tables) if shares and tables else _memory_kb(one.pid)


def _kilobytes(path: str, names: tuple[bytes, ...]) -> list[int]:
    lines = _read_bytes(path).splitlines()
    return [int(line.split()[1]) for line in lines if line.startswith(names)]


def _memory_kb(pid: int) -> int:
    """KiB of memory that the process sees as its own, page tables included. The first thread that has not ended shows it."""
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            if shown := _kilobytes(f"/proc/{pid}/task/{thread}/status", _OWN_MEMORY):
                return sum(shown)
    return 0


def _is_inside(pid: int, name: str = "tmp") -> bool:
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


def _kernel_kb(pid: int, places: Sequence[str]) -> int:
    """KiB that the kernel may keep for the files in `places` and the sockets of the sandbox that this process is in."""
    num_files = sum(_num_files(pid, name) or 0 for name in places)
    used = _read_bytes(f"/proc/{pid}/net/sockstat").partition(b"used ")[2].split()
    queued = sum(_queued_bytes(f"/proc/{pid}/net/{name}") for name in ("tcp", "tcp6"))
    return num_files * _FILE_KB + int(used[0] if used else 0) * _SOCKET_KB + queued // 1024


def _queued_bytes(path: str) -> int:
    """Bytes that wait in the connections that a table of the kernel lists, as `tx_queue:rx_queue` in hexadecimal."""
    rows = (line.split() for line in _read_bytes(path).splitlines()[1:])
    return sum(int(part, 16) for row in rows for part in row[4].split(b":"))


def _end_all(process: "subprocess.Popen[bytes]", uid: int) -> bool:
    """Kill every process under this one; whether all are gone. They may fork meanwhile.

    A list of processes may miss one that was born while it was made. That this process has no child
    tells it surely: whoever loses a parent becomes a child of this process.
    """
    deadline = time.monotonic() + _KILL_S
    while True:
        members = descendants(os.getpid())
        for member in members:
            with contextlib.suppress(OSError):
                os.kill(member, signal.SIGKILL)
        if members and uid and os.fork() == 0:
            _kill_all_of(uid)
        if process.poll() is not None and not _has_children():
            return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)


def _kill_all_of(uid: int) -> None:
    """Kill at once, in a forked child, all processes of a user that only this sandbox has."""
    try:
        os.setresuid(uid, uid, uid)
        os.kill(-1, signal.SIGKILL)  # this process too, where the kernel counts it
    finally:
        os._exit(0)


def _has_children() -> bool:
    """Collect the children that have ended; whether there are others."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def _read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""  # it has ended


if __name__ == "__main__":
    main()
