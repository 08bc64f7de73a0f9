"""Programs that are kept between episodes: each is asked one line after another, and answers with a line.

They save the time of a slow start. A program that ends, or whose question is cancelled, is replaced.
"""

import asyncio
import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from areal_sdk.process.programs.program import (
    STOP_GRACE_S,
    ProgramEnd,
    Programs,
    Tail,
    end_program,
    start_program,
)

T = TypeVar("T")


class WarmPrograms(Generic[T]):
    """Programs of one command line, started when they are asked and kept for the next question."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        self._words = words
        self._env = env
        self._programs = Programs()
        self._idle: list[_Warm[T]] = []

    async def ask(
        self,
        line: bytes,
        read: Callable[[str], T | None],
        *,
        written: Callable[[ProgramEnd, bool], None] = lambda end, is_answered: None,
    ) -> T | ProgramEnd:
        """The answer to `line`, or the end of the program if that comes first. OSError: no start.

        `read` makes the answer of a line of output; None: the line is no answer. `written` gets what the program wrote
        meanwhile, also for a cancelled question. A program that has answered goes on: its end there has exit code 0.
        """
        program = await self._take()
        began = time.monotonic()
        try:
            answer = await program.ask(line, read)
        except BaseException:
            written(await program.end(began), False)
            raise
        if answer is None:
            end = await program.end(began)
            written(end, False)
            return end
        seconds = time.monotonic() - began
        written(ProgramEnd(0, None, program.out.text, program.err.text, seconds), True)
        self._idle.append(program)
        return answer

    async def _take(self) -> "_Warm[T]":
        """A program that waits, else a new one."""
        while self._idle:
            program = self._idle.pop()
            if not program.is_gone:
                return program
            await program.end(time.monotonic())
        return await _Warm.start(self._words, self._env, self._programs.new_family())

    async def aclose(self) -> None:
        """End the programs that wait."""
        idle, self._idle = self._idle, []
        await asyncio.gather(*(program.end(time.monotonic()) for program in idle))


class _Lines(Tail):
    """Keeps the end of what came, and hands out whole lines."""

    def __init__(self, on_over: Callable[[], None]) -> None:
        super().__init__(on_over)
        self.on_line: Callable[[str], None] | None = None
        self._begun = bytearray()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        ended, newline, begun = data.rpartition(b"\n")
        if not newline:
            self._begun += data
            return
        lines = (self._begun + ended).split(b"\n")
        self._begun = bytearray(begun)
        for line in lines:
            if self.on_line is not None:
                self.on_line(line.decode(errors="replace"))


class _Warm(Generic[T]):
    """One program that runs, its pipes, and whether it is gone."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        family: str,
        stdin: asyncio.WriteTransport,
        out: _Lines,
        err: Tail,
        gone: asyncio.Event,
    ) -> None:
        self._process = process
        self._family = family
        self._stdin = stdin
        self.out, self.err = out, err
        self._gone = gone
        self._descriptor = os.pidfd_open(process.pid)
        asyncio.get_running_loop().add_reader(self._descriptor, gone.set)

    @classmethod
    async def start(cls, words: Sequence[str], env: Mapping[str, str], family: str) -> "_Warm[T]":
        gone = asyncio.Event()  # also set when it writes too much
        async with contextlib.AsyncExitStack() as opened:
            out = await _Lines.open(gone.set)
            opened.callback(out.close)
            err = await Tail.open(gone.set)
            opened.callback(err.close)
            reader, writer = os.pipe()
            opened.callback(os.close, reader)
            pipe = os.fdopen(writer, "wb", 0)
            opened.callback(pipe.close)
            process = start_program(words, env, family, reader, out, err)
            loop = asyncio.get_running_loop()
            stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, pipe)
            opened.pop_all()
            os.close(reader)
            return cls(process, family, stdin, out, err, gone)

    @property
    def is_gone(self) -> bool:
        return self._gone.is_set()

    async def ask(self, line: bytes, read: Callable[[str], T | None]) -> T | None:
        """The answer; None if the program is gone before."""
        answered: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def take(text: str) -> None:
            if not answered.done() and (found := read(text)) is not None:
                answered.set_result(found)

        self.out.forget()
        self.err.forget()
        self.out.on_line = take
        gone = asyncio.create_task(self._gone.wait())
        try:
            self._stdin.write(line)
            either: list[asyncio.Future[Any]] = [answered, gone]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.out.on_line = None
            gone.cancel()
        return answered.result() if answered.done() else None

    async def end(self, began: float) -> ProgramEnd:
        """End the program, with all that it has started."""
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._stdin.close()
        grace_s = 0.0 if self.is_gone else STOP_GRACE_S
        try:
            return await end_program(
                self._process, self._family, self.out, self.err, grace_s=grace_s, began=began
            )
        finally:
            self.out.close()
            self.err.close()
