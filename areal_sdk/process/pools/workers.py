"""A small pool of killable workers for calls that may hang, crash or never end.

A worker serves one call at a time. If a call misses its deadline or crashes its worker, the worker
is killed with all processes it started, and a new one replaces it; other calls are not affected. A
cancelled call also ends its worker, unless the pool is made with `spares_cancelled`.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, Self

from areal_sdk.errors import CallTimeoutError, ProcessError, RemoteError
from areal_sdk.process.child import Child
from areal_sdk.process.frames import JSON, Buffer, ChildReply
from areal_sdk.process.pools.supervision import Slots
from areal_sdk.process.services import Answer, Client, Service
from areal_sdk.process.spawn import spawn
from areal_sdk.process.spec import MemoryLimit, ProcessSpec
from areal_sdk.process.threads import BackgroundTasks


class Spared(Service, Protocol):
    """Contract of the workers of a pool that `spares_cancelled`."""

    def idle(self) -> Answer[None]:
        """Called after a cancelled call. The answer says that the worker is free."""


class WorkerPool:
    """`size` workers that run `entry`; `async with` starts and ends them.

    The entry answers one request after another:

        def main(channel, args):
            channel.ready()
            while True:
                request = channel.receive()
                request.reply(compute(request.payload))
    """

    def __init__(
        self,
        entry: str,
        *,
        size: int,
        log_dir: Path,
        args: Mapping[str, JSON] | None = None,
        name: str = "worker",
        threads: int = 1,
        start_timeout_s: float = 60.0,
        spares_cancelled: bool = False,
        python: str = "",
        memory: MemoryLimit | None = None,
    ) -> None:
        """`spares_cancelled`: a cancelled call goes on to its end, or to its deadline, and the worker is kept. The
        entry answers `Spared.idle`."""
        self._specs = [
            ProcessSpec(
                f"{name}-{index}",
                entry,
                args or {},
                threads=threads,
                python=python,
                memory=memory,
            )
            for index in range(size)
        ]
        self._log_dir = log_dir
        self._start_timeout_s = start_timeout_s
        self._spares_cancelled = spares_cancelled
        self._slots = Slots(
            size, start=self._start_worker, is_lost=lambda child: child.exited.done(), name=name
        )
        self._free: asyncio.Queue[int] = asyncio.Queue()
        self._background = BackgroundTasks()
        """Background tasks that return workers to the queue."""
        self._abandoned: set[Child] = set()
        """Workers that still run a cancelled call."""
        self._is_closed = False
        self.num_replaced = 0
        """Workers lost to a deadline or a crash, and, unless `spares_cancelled`, to a cancellation."""

    @property
    def size(self) -> int:
        return len(self._specs)

    async def start(self) -> None:
        """Start every worker; the first failure ends the others."""
        try:
            await self._slots.start()
        except BaseException:
            await self.aclose()
            raise
        for index in range(self.size):
            self._free.put_nowait(index)

    async def call(
        self,
        method: str,
        payload: JSON = None,
        buffers: Sequence[Buffer] = (),
        *,
        timeout_s: float,
        queue_timeout_s: float = 3600.0,
    ) -> ChildReply:
        """Run one call on a free worker. The deadline begins when the call has a worker.

        `RemoteError`: the code of the call raised. `CallTimeoutError`: the deadline passed, and the worker was killed.
        `ChildDiedError`: the call crashed its worker.
        """
        index = await self._take_worker(method, queue_timeout_s)
        worker: Child | None = None
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            worker = await self._living_worker(index)
            began = clock()
            reply = await worker.call(method, payload, buffers, timeout_s=timeout_s)
        except (RemoteError, TypeError, ValueError):  # the worker is unharmed
            self._free.put_nowait(index)
            raise
        except asyncio.CancelledError:
            if worker is not None and self._spares_cancelled:
                left_s = began + timeout_s - clock()
                self._background.begin(
                    self._free_when_idle(index, worker, left_s), name=f"spare worker {index}"
                )
            else:
                self._replace(index, worker)
            raise
        except BaseException:
            self._replace(index, worker)
            raise
        self._free.put_nowait(index)
        return reply

    async def aclose(self) -> None:
        """End every worker. Calls in flight fail. Idempotent."""
        self._is_closed = True
        self._free.put_nowait(0)  # a waiting call wakes up, and wakes the next
        busy = list(self._abandoned)
        await self._background.cancel()
        await asyncio.gather(*(worker.kill() for worker in busy), return_exceptions=True)
        living = await self._slots.aclose()
        await asyncio.gather(*(worker.aclose(grace_s=1.0) for worker in living))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _take_worker(self, method: str, queue_timeout_s: float) -> int:
        try:
            async with asyncio.timeout(queue_timeout_s):
                index = await self._free.get()
        except TimeoutError:
            raise CallTimeoutError(
                f"{method!r} waited {queue_timeout_s:g} s for one of {self.size} workers"
            ) from None
        if self._is_closed:
            self._free.put_nowait(index)
            raise ProcessError(f"{method!r} was called on a closed pool")
        return index

    async def _living_worker(self, index: int) -> Child:
        try:  # started again here, if its replacement failed or it died while idle
            return await self._slots.worker(index)
        except RemoteError as exc:  # else it would look like an exception of the call
            raise ProcessError(str(exc)) from exc

    async def _start_worker(self, index: int) -> Child:
        spec = self._specs[index]
        return await spawn(spec, log_dir=self._log_dir, start_timeout_s=self._start_timeout_s)

    async def _free_when_idle(self, index: int, worker: Child, left_s: float) -> None:
        """Wait, until the deadline of a cancelled call, for its worker to be free."""
        self._abandoned.add(worker)
        try:
            await Client[Spared](worker).call(Spared.idle, timeout_s=left_s)
        except RemoteError:
            pass  # an error is a reply too
        except ProcessError:
            self._replace(index, worker)
            return
        finally:
            self._abandoned.discard(worker)
        self._free.put_nowait(index)

    def _replace(self, index: int, worker: Child | None) -> None:
        """Kill the worker, if it had started, and start a new one; other workers go on meanwhile."""
        self.num_replaced += 1
        self._background.begin(self._replace_worker(index, worker), name=f"replace worker {index}")

    async def _replace_worker(self, index: int, lost: Child | None) -> None:
        try:
            if lost is not None:
                await lost.kill()
            if not self._is_closed:
                await self._slots.worker(index)
        except ProcessError:
            pass  # the next call tries again, and raises the reason
        finally:
            self._free.put_nowait(index)
