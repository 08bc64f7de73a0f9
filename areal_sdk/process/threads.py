"""Calls in daemon threads, which cannot hold up a pool or the exit of the interpreter, and tasks in the background."""

import asyncio
import contextlib
import contextvars
import logging
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
logger = logging.getLogger(__name__)


async def in_thread(function: Callable[[], T], *, name: str) -> T:
    """The function's result, from a daemon thread of its own.

    A hung call would hold a pool's thread, and the interpreter's exit, for ever. `asyncio.to_thread`
    has a pool, and user code may hold all of its threads.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():  # cancelled
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def call() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = context.run(function)
        except StopIteration as exc:  # no future can hold one
            error = RuntimeError(f"it raised StopIteration({exc})")
            error.__cause__ = exc
        except BaseException as exc:  # noqa: BLE001 - handed to the awaiting side, whole
            error = exc
        with contextlib.suppress(RuntimeError):  # the loop is closed: the run is over
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=call, name=name, daemon=True).start()
    try:
        return await future
    except asyncio.CancelledError:
        logger.info("%s goes on in its thread: a plain function cannot be stopped", name)
        raise


class BackgroundTasks:
    """Keeps each task until it ends. Iterates over the tasks that have not ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, task: Coroutine[Any, Any, None], *, name: str) -> None:
        self.keep(asyncio.create_task(task, name=name))

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Keep a task, even if whoever awaits it does so for a while only."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def __iter__(self) -> Iterator[asyncio.Task[Any]]:
        return iter(list(self._tasks))

    async def finish(self) -> None:
        """Wait for the tasks to end."""
        await asyncio.gather(*self, return_exceptions=True)

    async def cancel(self) -> None:
        """Cancel the tasks, and wait for them to end."""
        tasks = list(self)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
