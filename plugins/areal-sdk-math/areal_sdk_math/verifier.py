"""math-verify in a process that can be killed: an expression that hangs or explodes costs one verdict."""

import atexit
import functools
import json
import os
import select
import subprocess
import sys
import threading
import time
from enum import StrEnum

_WALL_PER_CPU_S = 5.0
"""A busy machine gives the process a fifth of its time, and that is not the expression's fault."""
_LOOK_EVERY_MS = 50
START_S = 120.0
"""For the import of sympy, on a busy machine."""


class Comparison(StrEnum):
    SAME = "same"
    DIFFERENT = "different"
    TOO_MUCH = "too much"
    """The comparison took longer, or more memory, than it may."""


class Verifier:
    """One process, started when it is first needed and again after it was killed."""

    def __init__(self, *, timeout_s: float, memory_mb: int) -> None:
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def compare(self, said: str, expected: str) -> Comparison:
        """Whether two expressions mean the same. ValueError if `expected` alone is too much."""
        with self._lock:
            if self._ask({"expected": expected}) is None:
                raise ValueError(
                    f"the expected answer {expected!r:.100} cannot be read within {self._timeout_s:g} s and "
                    f"{self._memory_mb} MB"
                )
            answer = self._ask({"said": said, "expected": expected})
        if answer is None:
            return Comparison.TOO_MUCH
        return Comparison.SAME if answer["same"] else Comparison.DIFFERENT

    def close(self) -> None:
        """End the process. The next comparison starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _ask(self, question: dict[str, str]) -> dict[str, bool] | None:
        """The answer; None if it did not come in time or the process died of the question."""
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
            wall_s = _WALL_PER_CPU_S * self._timeout_s
            line = _read_line(process, self._timeout_s, wall_s=wall_s)
        except BrokenPipeError:
            line = b""
        if not line:
            self.close()
            return None
        answer: dict[str, bool] = json.loads(line)
        return answer

    def _start(self) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "areal_sdk_math.verifier_process", str(self._memory_mb)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if not _read_line(self._process, START_S):
            self.close()
            raise RuntimeError("math-verify did not start: its process says why in the log above")
        return self._process


@functools.cache
def verifier(timeout_s: float, memory_mb: int) -> Verifier:
    """The verifier of this process with these limits."""
    made = Verifier(timeout_s=timeout_s, memory_mb=memory_mb)
    atexit.register(made.close)
    return made


def _read_line(
    process: "subprocess.Popen[bytes]", timeout_s: float, *, wall_s: float | None = None
) -> bytes:
    """The next line; empty at the end of the process, after `timeout_s` of its CPU time, and after `wall_s`."""
    assert process.stdout is not None
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    began, used_s = time.monotonic(), _cpu_seconds(process.pid)
    line = b""
    while not line.endswith(b"\n"):
        if not poll.poll(_LOOK_EVERY_MS):
            is_late = time.monotonic() - began > (wall_s or timeout_s)
            if is_late or _cpu_seconds(process.pid) - used_s > timeout_s:
                return b""
            continue
        piece = os.read(process.stdout.fileno(), 65536)
        if not piece:
            return b""
        line += piece
    return line


def _cpu_seconds(pid: int) -> float:
    """CPU time of a child that was not collected yet."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
