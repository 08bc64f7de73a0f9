"""Tasks that nobody awaits, such as the replacement of a dead worker.

asyncio holds a task weakly: unless somebody keeps it, it may be collected while it runs.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any


class BackgroundTasks:
    """Keeps each task until it ends. Iterates over the tasks that have not ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, task: Coroutine[Any, Any, None], *, name: str) -> None:
        self.keep(asyncio.create_task(task, name=name))

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Keep a task that somebody awaits for a while only."""
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
