"""Runs programs of any language to their end. Nothing that they start outlives them, or this process.

A program is in a session of its own, and its environment names a family, so a child that leaves the session is found
too. A guard, which is a small process beside this one, ends what still runs when this process was killed.
"""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self, cast

from areal_sdk.process import family as family_module
from areal_sdk.process.family import FAMILY_VARIABLE, end_family, new_family
from areal_sdk.process.threads import in_thread

MAX_KEPT_BYTES = 256 * 1024
"""Maximum number of bytes that are kept of each stream: its last ones."""
MAX_OUTPUT_BYTES = 64 * 1024 * 1024
"""Maximum output of a program. A program that writes more is killed: reading it would hold up everything else."""
STOP_GRACE_S = 1.0
"""Seconds from SIGTERM to SIGKILL, for a program that is stopped early."""
LAST_WORDS_S = 0.5
"""Time to read on after the end: what a program wrote may still be in the pipe."""

_GUARD = """
import runpy, sys
end_family = runpy.run_path(sys.argv[1])["end_family"]
sys.stdin.buffer.read()  # until the process that holds the other end is gone
end_family(sys.argv[2])
"""


@dataclass(frozen=True, slots=True)
class ProgramEnd:
    """The end of a program: its exit status, and the end of what it wrote."""

    code: int | None
    """Exit code of the program; None if a signal ended it."""
    signal: int | None
    stdout: str
    stderr: str
    seconds: float
    wrote_too_much: bool = False
    limit: str = ""
    """The limit that ended the program in a sandbox, in words."""

    def __str__(self) -> str:
        if self.limit:
            return self.limit
        if self.wrote_too_much:
            return f"killed: it wrote more than {MAX_OUTPUT_BYTES >> 20} MiB"
        if self.signal is not None:
            return f"killed by {_signal_name(self.signal)}"
        return f"exit code {self.code}"


class Programs:
    """Starts programs. A guard process ends what they leave behind; it runs as long as this object lives."""

    def __init__(self) -> None:
        self._family = new_family(os.environ)
        self._guard: subprocess.Popen[bytes] | None = None

    async def run(
        self,
        words: Sequence[str],
        *,
        env: Mapping[str, str],
        stdin: Path,
        ended: Callable[[ProgramEnd], None] = lambda end: None,
    ) -> ProgramEnd:
        """Run `words` until their end, with the variables `env` added. OSError if they cannot start.

        A cancellation ends the program, with all that it started, before the cancellation is passed on. `ended` is
        called in any case: the output may say why the program took its time.
        """
        family = self.new_family()
        began = time.monotonic()
        done = asyncio.Event()
        async with _tails(done.set) as (out, err):
            with stdin.open("rb") as task:
                process = start_program(words, env, family, task.fileno(), out, err)
            grace_s = STOP_GRACE_S
            try:
                await _until_ended(process.pid, done)
                grace_s = 0.0
            finally:
                end = await end_program(process, family, out, err, grace_s=grace_s, began=began)
                ended(end)
            return end

    def new_family(self) -> str:
        """A name for all processes of one program; from now on the guard watches over them."""
        self._start_guard()
        return new_family({FAMILY_VARIABLE: self._family})

    def _start_guard(self) -> None:
        if self._guard is not None and self._guard.poll() is None:
            return
        reader, writer = os.pipe()
        file = family_module.__file__
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, file, self._family],
            stdin=reader,
            start_new_session=True,  # Ctrl-C is not for it
        )
        os.close(reader)
        weakref.finalize(self, _end_guard, self._guard, writer)


def _end_guard(guard: "subprocess.Popen[bytes]", writer: int) -> None:
    os.close(writer)
    guard.wait()


class Tail(asyncio.Protocol):
    """Reads a pipe, and keeps the end of what came."""

    def __init__(self, on_over: Callable[[], None]) -> None:
        self.eof = asyncio.Event()
        self.is_over = False
        self.writer = -1
        """Descriptor of the pipe's end that the program writes to, until the program is started."""
        self._on_over = on_over
        self._kept = bytearray()
        self._total = 0
        self._transport: asyncio.ReadTransport | None = None

    @classmethod
    async def open(cls, on_over: Callable[[], None]) -> Self:
        reader, writer = os.pipe()
        pipe = os.fdopen(reader, "rb", 0)
        try:
            loop = asyncio.get_running_loop()
            _, tail = await loop.connect_read_pipe(lambda: cls(on_over), pipe)
        except BaseException:
            os.close(writer)
            pipe.close()
            raise
        tail.writer = writer
        return tail

    @property
    def text(self) -> str:
        return self._kept[-MAX_KEPT_BYTES:].decode(errors="replace")

    def forget(self) -> None:
        """Keep only what comes from now on."""
        self._kept.clear()
        self._total = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._total += len(data)
        self._kept += data
        if len(self._kept) > 2 * MAX_KEPT_BYTES:
            del self._kept[:-MAX_KEPT_BYTES]
        if self._total > MAX_OUTPUT_BYTES and not self.is_over:
            self.is_over = True
            self._on_over()

    def connection_lost(self, exc: Exception | None) -> None:
        self.eof.set()

    def close_writer(self) -> None:
        if self.writer >= 0:
            os.close(self.writer)
            self.writer = -1

    def close(self) -> None:
        self.close_writer()
        if self._transport is not None:
            self._transport.close()


def start_program(
    words: Sequence[str], env: Mapping[str, str], family: str, stdin: int, out: Tail, err: Tail
) -> "subprocess.Popen[bytes]":
    """The process of a program, in a session of its own. OSError if it cannot start."""
    process = subprocess.Popen(
        words,
        stdin=stdin,
        stdout=out.writer,
        stderr=err.writer,
        env={**os.environ, **env, FAMILY_VARIABLE: family},
        start_new_session=True,
    )
    out.close_writer()
    err.close_writer()
    return process


async def end_program(
    process: "subprocess.Popen[bytes]",
    family: str,
    out: Tail,
    err: Tail,
    *,
    grace_s: float,
    began: float,
) -> ProgramEnd:
    """End the program if it still runs, with all that it has started, and read on to its last words."""
    stop = partial(_end, process, family, grace_s=grace_s)
    await in_thread(stop, name=f"end of program {process.pid}")
    await _until_read(out, err)
    return ProgramEnd(
        None if process.returncode < 0 else process.returncode,
        -process.returncode if process.returncode < 0 else None,
        out.text,
        err.text,
        time.monotonic() - began,
        wrote_too_much=out.is_over or err.is_over,
    )


@asynccontextmanager
async def _tails(on_over: Callable[[], None]) -> AsyncIterator[tuple[Tail, Tail]]:
    """Readers of stdout and stderr."""
    out = await Tail.open(on_over)
    try:
        err = await Tail.open(on_over)
        try:
            yield out, err
        finally:
            err.close()
    finally:
        out.close()


async def _until_read(*tails: Tail) -> None:
    """Return when no process writes any more. A process that escaped from the family may hold a pipe for ever."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_WORDS_S):
            for tail in tails:
                await tail.eof.wait()


async def _until_ended(pid: int, done: asyncio.Event) -> None:
    """Return once the process is dead, or `done` is set. The process is not reaped here, so its pid stays its own."""
    loop = asyncio.get_running_loop()
    descriptor = os.pidfd_open(pid)
    loop.add_reader(descriptor, done.set)
    try:
        await done.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def _end(process: "subprocess.Popen[bytes]", family: str, *, grace_s: float) -> None:
    """End the program if it still runs, and all that it has started. Blocks: for a thread."""
    with contextlib.suppress(ProcessLookupError):
        if grace_s:
            os.killpg(process.pid, signal.SIGTERM)
            _wait_dead(process.pid, grace_s)
        os.killpg(process.pid, signal.SIGKILL)
    end_family(family, ancestor=process.pid)  # what has left the group
    process.wait()


def _wait_dead(pid: int, timeout_s: float) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()  # unlike select.select, for any descriptor
        poll.register(descriptor, select.POLLIN)
        poll.poll(timeout_s * 1000)
    finally:
        os.close(descriptor)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
