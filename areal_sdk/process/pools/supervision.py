"""Replaces children that are lost, unless too many were lost.

`Slots` keeps a fixed number of workers; `Restarts` decides when one more start is one too many;
`started_again` makes the starts.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from areal_sdk.errors import ChildDiedError, ProcessError

Worker = TypeVar("Worker")


class Slots(Generic[Worker]):
    """Fixed slots with one worker each, running or starting. A lost worker is replaced.

    `fill` starts the replacements; the owner of the slots calls `fill`, and ends the workers.
    """

    def __init__(
        self,
        size: int,
        *,
        start: Callable[[int], Coroutine[Any, Any, Worker]],
        is_lost: Callable[[Worker], bool],
        name: str,
        replace: Callable[[int], Coroutine[Any, Any, Worker]] | None = None,
    ) -> None:
        """`start` makes the worker of a slot; `name` and the slot's number name its task.

        `replace` makes a later worker of the slot; by default, `start` does.
        """
        self.num_started = 0
        """Workers started so far; those beyond the number of slots are replacements."""
        self._start = start
        self._replace = replace or start
        self._is_lost = is_lost
        self._name = name
        self._size = size
        self._tasks: list[asyncio.Task[Worker]] = []

    @property
    def workers(self) -> list[Worker]:
        """The workers that run and are not lost."""
        return [task.result() for task in self._tasks if task.done() and not self._is_vacant(task)]

    @property
    def failure(self) -> BaseException | None:
        """The error of a worker that could not be started; None if there is none."""
        tasks = (task for task in self._tasks if task.done() and not task.cancelled())
        return next((error for task in tasks if (error := task.exception()) is not None), None)

    async def start(self) -> None:
        """Start every worker; raises the first failure."""
        self._tasks = [self._begin(index, self._start) for index in range(self._size)]
        await asyncio.gather(*self._tasks)

    def fill(self, *, retry: bool) -> None:
        """Replace every lost worker; with `retry`, also every worker that did not start."""
        for index in range(len(self._tasks)):
            self._fill(index, retry=retry)

    async def worker(self, index: int) -> Worker:
        """The worker of one slot, once it has started; a vacant slot is filled first."""
        self._fill(index, retry=True)
        return await asyncio.shield(self._tasks[index])

    async def some(self) -> list[Worker]:
        """Return at least one worker. If all are lost, wait for the first replacement that starts.

        Raises the error with which a replacement did not start. Empty if the slots were closed meanwhile.
        """
        self.fill(retry=True)
        while self._tasks and not self.workers:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if not task.cancelled() and (error := task.exception()) is not None:
                    raise error
            self.fill(retry=False)
        return self.workers

    async def aclose(self) -> list[Worker]:
        """Stop starting workers; returns those that started, for their owner to end."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return [task.result() for task in tasks if not _did_not_start(task)]

    def _fill(self, index: int, *, retry: bool) -> None:
        task = self._tasks[index]
        if self._is_vacant(task) and (retry or not _did_not_start(task)):
            self._tasks[index] = self._begin(index, self._replace)

    def _begin(
        self, index: int, start: Callable[[int], Coroutine[Any, Any, Worker]]
    ) -> asyncio.Task[Worker]:
        self.num_started += 1
        task = asyncio.create_task(start(index), name=f"start {self._name}-{index}")
        task.add_done_callback(_did_not_start)  # its error is known: nobody may ask for it
        return task

    def _is_vacant(self, task: asyncio.Task[Worker]) -> bool:
        return task.done() and (_did_not_start(task) or self._is_lost(task.result()))


def _did_not_start(task: asyncio.Task[Any]) -> bool:
    return task.cancelled() or task.exception() is not None


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """The limit of restarts: at most `max_restarts` within `window_s`, each after a longer pause."""

    max_restarts: int = 3
    """Number of restarts within `window_s`. 0: the first death ends the run."""
    window_s: float = 600.0
    """Seconds over which restarts count. Infinite: all since `Restarts.forget` count."""
    first_pause_s: float = 0.5
    max_pause_s: float = 30.0


class Restarts:
    """The restarts of one child so far. When the child dies, wait for `pause_after` seconds, then start it again."""

    def __init__(self, policy: RestartPolicy | None = None) -> None:
        self.policy = policy or RestartPolicy()
        self._recent: deque[float] = deque()

    def pause_after(self, death: str, *, log_path: Path | None, now: float | None = None) -> float:
        """Seconds to wait before the next start; `ChildDiedError` when there were too many deaths."""
        policy = self.policy
        now = time.monotonic() if now is None else now
        while self._recent and now - self._recent[0] > policy.window_s:
            self._recent.popleft()
        if len(self._recent) >= policy.max_restarts:
            within = "" if math.isinf(policy.window_s) else f" in {policy.window_s:g} s"
            often = f" {len(self._recent) + 1} times{within}"
            log = "" if log_path is None else f"; log: {log_path}"
            raise ChildDiedError(f"{death}{often if self._recent else ''}{log}")
        pause = min(policy.max_pause_s, policy.first_pause_s * 2.0 ** len(self._recent))
        self._recent.append(now)
        return pause

    def forget(self) -> None:
        """Note that the child is well, so that earlier deaths do not count any more."""
        self._recent.clear()


async def started_again(
    start: Callable[[], Awaitable[Worker]],
    *,
    restarts: Restarts,
    what: str,
    say: Callable[[str], None],
) -> Worker:
    """The worker that `start` makes. A start that fails is tried again after a pause.

    Says each failure; raises `ChildDiedError` after too many.
    """
    while True:
        try:
            return await start()
        except (ProcessError, OSError) as exc:
            why = f"{what} did not start: {exc}"
            pause_s = restarts.pause_after(why, log_path=None)
        say(f"{why}: tried again in {pause_s:g} s")
        await asyncio.sleep(pause_s)
