"""Runs one program in a sandbox and holds it to its limits, in a process of its own.

The supervisor runs outside the sandbox, so the program can neither stop it nor write its report. The
order comes on stdin: a line of JSON, then the program's own input. The report goes to stdout: a line of
JSON, then the program's output. If stdin ends before the report, nobody waits for the report any more.
"""

import contextlib
import ctypes
import json
import os
import resource
import selectors
import signal
import subprocess
import sys
import time
from typing import Any, BinaryIO

from areal_sdk_sandbox.accounting import (
    CpuTime,
    below,
    descendants,
    is_inside,
    kernel_kb,
    memory_kb,
    process_of,
    processes,
    shared_out_kb,
)

PROGRAM = """
import sys, types
from os.path import dirname
package = types.ModuleType("areal_sdk_sandbox")
package.__path__ = [dirname(sys.argv[1])]
sys.modules["areal_sdk_sandbox"] = package
from areal_sdk_sandbox.supervisor import main
main()
"""
"""The program that calls `main`, with the path of this file as its argument. It leaves out `__init__` of the package, whose
imports would take longer than a start."""

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
_PR_SET_CHILD_SUBREAPER = 36
_SIGXCPU_EXIT = 128 + signal.SIGXCPU


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
        machine = processes()
        tree = [one for pid in below(machine, os.getpid()) if (one := process_of(pid)) is not None]
        members = [one for one in tree if not one.is_over]
        kernel_mb = self._kernel_mb([one.pid for one in members])
        memory_mb = kernel_mb + sum(memory_kb(one.pid) for one in members) / 1024
        if memory_mb > self._peak_mb:  # perhaps it counts memory twice
            memory_mb = min(memory_mb, kernel_mb + shared_out_kb(members) / 1024)
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
        self._witness = next((pid for pid in known if is_inside(pid)), 0)
        places = ("tmp", "dev/shm", *(one[1:] for one in self._order["writable"]))
        return kernel_kb(self._witness, places) / 1024 if self._witness else 0.0

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


def _end_all(process: "subprocess.Popen[bytes]", uid: int) -> bool:
    """Kill every process under this one, also those that they fork meanwhile. Returns whether all are gone.

    A list of processes may miss a process that was born while the list was made. So the proof is that this process
    has no child left: a process whose parent dies becomes a child of this one.
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
    """Collect the children that have ended. Returns whether there are others."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False
