"""A state that every worker of a pool must know: the latest is sent to each worker until the worker confirms it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Generic, Protocol, TypeVar

from areal_sdk.errors import ChildDiedError, ProcessError
from areal_sdk.process.threads import BackgroundTasks

CONFIRM_WITHIN_S = 5.0
"""Seconds that a send waits for workers that do not confirm the state."""
SEND_AGAIN_S = 2.0
"""Pause before a state is sent again to a worker that refused it."""


class Receiver(Protocol):
    """A worker that is sent states."""

    @property
    def name(self) -> str: ...

    @property
    def is_lost(self) -> bool: ...


Worker = TypeVar("Worker", bound=Receiver)
Latest = TypeVar("Latest")


class Broadcast(Generic[Worker, Latest]):
    """Sends workers the latest state. An older one that a worker has not confirmed is given up."""

    def __init__(
        self,
        what: str,
        latest: Latest,
        *,
        send: Callable[[Worker, Latest], Awaitable[None]],
        background: BackgroundTasks,
        say: Callable[[str], None],
    ) -> None:
        """`what` names the state to the user. `send` returns when the worker has confirmed it, and
        raises `ProcessError` when it has not. `latest`: the state that every worker knows from its start."""
        self.latest = latest
        self._number = 0
        self._what = what
        self._send_one = send
        self._background = background
        self._say = say
        self._late: set[Worker] = set()
        """Workers that the user was told about, because they have not confirmed the latest state."""

    @property
    def is_confirmed(self) -> bool:
        """Whether no worker is known to be late."""
        return not self._late

    @property
    def number(self) -> int:
        """The number of the latest state. A worker that is made now knows this state."""
        return self._number

    async def send(self, workers: Iterable[Worker], latest: Latest) -> None:
        """Send the state to every worker, and wait for those that answer in time.

        Sending to the others goes on until they confirm the state, or there is a newer one.
        """
        self.latest = latest
        self._number += 1
        await self._send_all(workers)

    async def catch_up(self, worker: Worker, known: int) -> None:
        """Send a worker that has just started the latest state, if that came after number `known`."""
        while known != self._number:
            known = self._number
            await self._send_all([worker])

    def forget(self, worker: Worker) -> None:
        """Forget a worker that was lost."""
        self._late.discard(worker)

    async def _send_all(self, workers: Iterable[Worker]) -> None:
        number = self._number
        sending = {asyncio.create_task(self._send(w, number)): w for w in workers}
        for task in sending:
            self._background.keep(task)
        if sending:
            done, late = await asyncio.wait(sending, timeout=CONFIRM_WITHIN_S)
            for task in late if number == self._number else ():  # else a newer one was sent
                self._say_late(sending[task], f"no answer within {CONFIRM_WITHIN_S:g} s")
            for task in done:
                task.result()  # raises bugs

    async def _send(self, worker: Worker, number: int) -> None:
        """Send the latest state until the worker confirms it or is lost, or until a newer state is sent."""
        while number == self._number and not worker.is_lost:
            try:
                await self._send_one(worker, self.latest)
            except ChildDiedError:
                return  # another worker takes its place
            except ProcessError as exc:
                self._say_late(worker, str(exc))
                await asyncio.sleep(SEND_AGAIN_S)
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
