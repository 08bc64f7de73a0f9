"""The episode whose code holds the event loop of a worker, readable after the worker's death.

Many episodes share a worker. If its loop is blocked or its process died, the episode that caused this must be found
among them. So each step of each task of an episode writes the episode's number and the time to a few bytes of shared
memory.
"""

import asyncio
import contextvars
import mmap
import os
import struct
import tempfile
import time
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any, Self

_LAYOUT = struct.Struct("=Qd")

Step = tuple[int, float]
"""Number of the episode whose code runs (0: none), and the time at which it began (`time.monotonic`)."""

PLAYING: contextvars.ContextVar[int] = contextvars.ContextVar("playing", default=0)
"""Number of the episode that the current code belongs to; tasks that it starts inherit it."""


class LoopHolder:
    """The shared bytes that name the episode. The main process creates and reads them; the worker writes them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _LAYOUT.size)

    @classmethod
    def create(cls) -> Self:
        descriptor, path = tempfile.mkstemp(prefix="areal-sdk-loop-")
        os.write(descriptor, bytes(_LAYOUT.size))
        os.close(descriptor)
        return cls(Path(path))

    def forget_path(self) -> None:
        """Remove the file, which both processes have opened."""
        self.path.unlink(missing_ok=True)

    def enter(self, number: int) -> None:
        _LAYOUT.pack_into(self._memory, 0, number, time.monotonic())

    def leave(self) -> None:
        _LAYOUT.pack_into(self._memory, 0, 0, 0.0)

    def read(self) -> Step:
        number, since = _LAYOUT.unpack_from(self._memory, 0)
        return number, since


class RecordedSteps(Coroutine[Any, Any, Any]):
    """A coroutine that records its episode as the holder of the loop while one of its steps runs."""

    def __init__(
        self, coroutine: Coroutine[Any, Any, Any], number: int, holder: LoopHolder
    ) -> None:
        self._coroutine = coroutine
        self._number = number
        self._holder = holder

    def send(self, value: Any) -> Any:
        self._holder.enter(self._number)
        try:
            result = self._coroutine.send(value)
        except (SystemExit, KeyboardInterrupt):
            raise  # this ends the worker, so its episode stays recorded
        except BaseException:
            self._holder.leave()
            raise
        self._holder.leave()
        return result

    def throw(self, *error: Any) -> Any:
        self._holder.enter(self._number)
        try:
            return self._coroutine.throw(*error)
        finally:
            self._holder.leave()

    def close(self) -> None:
        self._coroutine.close()

    def __await__(self) -> Generator[Any, None, Any]:
        return self._coroutine.__await__()

    def __getattr__(self, name: str) -> Any:
        """`cr_frame`, `cr_running` and the like, which debuggers and anyio look at."""
        return getattr(self._coroutine, name)


def record_tasks(loop: asyncio.AbstractEventLoop, holder: LoopHolder) -> None:
    """Make every task that `loop` creates for an episode record its steps in `holder`."""

    def make_task(
        loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any
    ) -> asyncio.Task[Any]:
        context: contextvars.Context | None = options.get("context")
        number = PLAYING.get() if context is None else context.get(PLAYING, 0)
        if number and asyncio.iscoroutine(coroutine):
            coroutine = RecordedSteps(coroutine, number, holder)
        return asyncio.Task(coroutine, loop=loop, **options)

    loop.set_task_factory(make_task)
