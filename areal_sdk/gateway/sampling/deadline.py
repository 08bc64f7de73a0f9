"""One deadline for a whole stream: set once a request, not once a token."""

import asyncio
from typing import Self


class Deadline:
    """Bounds the time that a loop waits for the items of a stream.

    `asyncio.timeout` around a loop that yields would fire in the consumer; around each item
    it costs more than the item. This fires only between `wait` and `rest`:

        with Deadline(60.0) as deadline:
            while True:
                deadline.wait()
                item = await anext(stream)
                deadline.rest()
                yield item
    """

    def __init__(self, seconds: float) -> None:
        self.must_wait = True
        """Whether `wait` must be called before the next item. Further calls can be skipped while nothing is yielded."""
        self._seconds = seconds
        self._is_waiting = False
        self._is_over = False
        self._has_cancelled = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "a coroutine runs in a task"
        self._task = task
        self._num_cancelled = task.cancelling()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self.expire)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._timer.cancel()
        if kind is asyncio.CancelledError and self._has_cancelled and self._is_waiting:
            self._is_waiting = False
            if self._task.uncancel() <= self._num_cancelled:  # nobody else wants it to end
                raise TimeoutError from None

    def wait(self) -> None:
        """Let the deadline fire from now on. If the time is up already, raise `TimeoutError` at once."""
        if self._is_over:
            raise TimeoutError
        self._is_waiting = True
        self.must_wait = False

    def rest(self) -> None:
        """Note that the awaited item has come. The deadline does not fire before the next `wait`."""
        self._is_waiting = False
        self.must_wait = True

    def expire(self) -> None:
        """End the current wait and refuse later ones with `TimeoutError`. Safe to call twice."""
        self._is_over = self.must_wait = True
        is_own = asyncio.current_task() is self._task  # it runs: the next wait is refused
        if self._is_waiting and not self._has_cancelled and not is_own:
            self._has_cancelled = True
            self._task.cancel()
