"""News that every worker of a pool must hear: each worker is told the latest until it confirms it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, Protocol, TypeVar

from areal_sdk.errors import ChildDiedError, ProcessError
from areal_sdk.process.pools.chores import Chores

TELL_WITHIN_S = 5.0
"""Seconds that news wait for workers that do not confirm them."""
TELL_AGAIN_S = 2.0
"""Pause before a worker that refused news is told them again."""


class Hearer(Protocol):
    """A worker that hears news."""

    @property
    def name(self) -> str: ...

    @property
    def is_lost(self) -> bool: ...


Worker = TypeVar("Worker", bound=Hearer)
Latest = TypeVar("Latest")


class News(Generic[Worker, Latest]):
    """Tells workers the latest news. Older news that a worker has not confirmed are given up."""

    def __init__(
        self,
        what: str,
        latest: Latest,
        *,
        tell: Callable[[Worker, Latest], Awaitable[None]],
        chores: Chores,
        say: Callable[[str], None],
    ) -> None:
        """`what` names the news to the user. `tell` returns when the worker has confirmed them, and
        raises `ProcessError` when it has not. `latest`: what every worker knows from its start."""
        self.latest = latest
        self._number = 0
        self._what = what
        self._tell_one = tell
        self._chores = chores
        self._say = say
        self._late: set[Worker] = set()
        """Workers that have not confirmed the latest news, as the user was told."""

    @property
    def is_heard(self) -> bool:
        """Whether no worker is known to be late."""
        return not self._late

    @property
    def number(self) -> int:
        """The number of the latest news. A worker that is made now knows these news."""
        return self._number

    async def tell(self, workers: Iterable[Worker], latest: Latest) -> None:
        """Tell every worker, and wait for those that answer in time.

        The others are told until they confirm these news, or there are newer ones.
        """
        self.latest = latest
        self._number += 1
        await self._tell_all(workers)

    async def catch_up(self, worker: Worker, known: int) -> None:
        """Tell a worker that has just started what came after the news of number `known`."""
        while known != self._number:
            known = self._number
            await self._tell_all([worker])

    def forget(self, worker: Worker) -> None:
        """The worker is lost."""
        self._late.discard(worker)

    async def _tell_all(self, workers: Iterable[Worker]) -> None:
        number = self._number
        telling = {asyncio.create_task(self._tell(w, number)): w for w in workers}
        for task in telling:
            self._chores.keep(task)
        if telling:
            done, late = await asyncio.wait(telling, timeout=TELL_WITHIN_S)
            for task in late if number == self._number else ():  # else it was told newer news
                self._say_late(telling[task], f"no answer within {TELL_WITHIN_S:g} s")
            for task in done:
                task.result()  # raises bugs

    async def _tell(self, worker: Worker, number: int) -> None:
        """Tell the worker until it has confirmed. Ends when the worker is lost, or the news are old."""
        while number == self._number and not worker.is_lost:
            try:
                await self._tell_one(worker, self.latest)
            except ChildDiedError:
                return  # another worker takes its place
            except ProcessError as exc:
                self._say_late(worker, str(exc))
                await asyncio.sleep(TELL_AGAIN_S)
            else:
                self._late.discard(worker)
                return

    def _say_late(self, worker: Worker, why: str) -> None:
        if worker not in self._late and not worker.is_lost:
            self._late.add(worker)
            self._say(
                f"warning: {worker.name} has not heard {self._what} ({why}): "
                "it is told until it confirms them"
            )
