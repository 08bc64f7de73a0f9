"""One deadline for a whole stream: set once a request, not once a token."""

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self, TypeVar

_T = TypeVar("_T")


class Deadline:
    """Bounds the time that items of a stream are waited for.

    `asyncio.timeout` around a loop that yields would fire in whoever consumes it; around each item
    it costs more than the item. This fires only while an item is awaited.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_waiting = False
        self._is_over = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(self._seconds, self.expire)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()

    async def next(self, stream: AsyncIterator[_T]) -> _T:
        """The stream's next item; `TimeoutError` once the time is up."""
        if self._is_over:
            raise TimeoutError
        before = self._task.cancelling()
        self._is_waiting = True
        try:
            return await anext(stream)
        except asyncio.CancelledError:
            if self._is_over and self._task.uncancel() <= before:
                raise TimeoutError from None
            raise
        finally:
            self._is_waiting = False

    def expire(self) -> None:
        """The time is up now: `next` raises, also where it waits already."""
        self._is_over = True
        is_own = asyncio.current_task() is self._task  # the next item is refused anyway
        if self._is_waiting and not is_own:
            self._task.cancel()
