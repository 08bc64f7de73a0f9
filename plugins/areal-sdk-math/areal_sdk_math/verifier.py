"""math-verify in a process that can be killed: an expression that hangs or explodes costs one verdict."""

import atexit
import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from enum import StrEnum

from areal_sdk import EpisodeError

_WALL_PER_CPU_S = 5.0
"""Wall-clock seconds per CPU second: on a busy machine the process gets a fifth of the CPU."""
_LOOK_EVERY_MS = 50
START_S = 120.0
"""Seconds for the import of sympy, on a busy machine."""
_END_S = 10.0
"""Seconds for the exit of a process that has closed its output."""
_KILLED = {-signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}
"""Exit codes of a process that was ended from outside. An expression that needs too much memory ends it with
another."""


class Comparison(StrEnum):
    SAME = "same"
    DIFFERENT = "different"
    TOO_MUCH = "too much"
    """The comparison took longer, or more memory, than it may."""


class _Failure(StrEnum):
    """The reason why a question has no answer."""

    TIME = "it took more CPU time than it may"
    DIED = "the process died of it"
    STOPPED = "the process was killed, or got no CPU time"


class Verifier:
    """One process, started when it is first needed and again after it was killed."""

    def __init__(self, *, timeout_s: float, memory_mb: int) -> None:
        self._timeout_s = timeout_s
        self._memory_mb = memory_mb
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def compare(self, said: str, expected: str) -> Comparison:
        """Whether two expressions mean the same. ValueError if `expected` alone is too much.

        A process that is killed or stalled from outside is an infrastructure error.
        """
        with self._lock:
            if self._judge({"expected": expected}) is None:
                raise ValueError(
                    f"the expected answer {expected!r:.100} cannot be read within {self._timeout_s:g} s and "
                    f"{self._memory_mb} MB"
                )
            answer = self._judge({"said": said, "expected": expected})
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
                    with contextlib.suppress(BrokenPipeError):  # of a question that nobody read
                        pipe.close()

    def _judge(self, question: dict[str, str]) -> dict[str, bool] | None:
        """The answer; None if the question itself takes too much.

        Only used-up CPU time shows that at once. Other failures may be due to the machine, or to the memory of
        earlier questions, so a fresh process is asked too.
        """
        answer = self._ask(question)
        if answer in (_Failure.DIED, _Failure.STOPPED):
            answer = self._ask(question)
        if answer is _Failure.STOPPED:
            raise EpisodeError.infrastructure(
                f"the process of math-verify gave no verdict, twice: {answer}"
            )
        return None if isinstance(answer, _Failure) else answer

    def _ask(self, question: dict[str, str]) -> dict[str, bool] | _Failure:
        """The answer, or why there is none; then the process has ended."""
        process = self._process or self._start()
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(question).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:  # it had ended before the question
            line: bytes | _Failure = _Failure.STOPPED
        else:
            wall_s = _WALL_PER_CPU_S * self._timeout_s
            line = _read_line(process, self._timeout_s, wall_s=wall_s)
        if line is _Failure.DIED and _was_killed(process):
            line = _Failure.STOPPED
        if isinstance(line, _Failure):
            self.close()
            return line
        answer: dict[str, bool] = json.loads(line)
        return answer

    def _start(self) -> "subprocess.Popen[bytes]":
        words = [sys.executable, "-m", "areal_sdk_math.verifier_process", str(self._memory_mb)]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if isinstance(_read_line(self._process, START_S), _Failure):
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
) -> bytes | _Failure:
    """The next line, unless the process ends, takes `timeout_s` of CPU time, or takes `wall_s`."""
    assert process.stdout is not None
    poll = select.poll()
    poll.register(process.stdout, select.POLLIN)
    began, used_s = time.monotonic(), _cpu_seconds(process.pid)
    line = b""
    while not line.endswith(b"\n"):
        if not poll.poll(_LOOK_EVERY_MS):
            if _cpu_seconds(process.pid) - used_s > timeout_s:
                return _Failure.TIME
            if time.monotonic() - began > (wall_s or timeout_s):
                return _Failure.STOPPED
            continue
        piece = os.read(process.stdout.fileno(), 65536)
        if not piece:
            return _Failure.DIED
        line += piece
    return line


def _was_killed(process: "subprocess.Popen[bytes]") -> bool:
    try:
        return process.wait(_END_S) in _KILLED
    except subprocess.TimeoutExpired:
        return False


def _cpu_seconds(pid: int) -> float:
    """CPU time of a child that was not collected yet."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
