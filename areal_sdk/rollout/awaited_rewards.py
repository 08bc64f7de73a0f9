"""One process that judges many episodes at once, with rewards that await (`async def`).

A judge behind an endpoint waits for seconds and computes nothing, so a process for each call would be
waste. The price is that a reward which blocks or crashes holds up its neighbours. So this worker is only
the fast way: a call that it does not answer is made again where it is alone.
"""

from collections.abc import Mapping
from pathlib import Path

from areal_sdk.errors import CallTimeoutError, ChildDiedError, ProcessError, RemoteError
from areal_sdk.process.child import Child
from areal_sdk.process.frames import JSON
from areal_sdk.process.pools.supervision import Slots
from areal_sdk.process.services import Client
from areal_sdk.process.spawn import spawn
from areal_sdk.process.spec import ProcessSpec
from areal_sdk.rollout.reward_worker import SHARED_WORKER, Rewards
from areal_sdk.types import Outcome

BLOCKED_S = 2.0
"""Seconds after the deadline of a call at which the worker counts as blocked. The worker itself ends a call at its
deadline."""


class SharedWorker:
    """The process, started again whenever it is lost."""

    def __init__(self, args: Mapping[str, JSON], *, log_dir: Path, start_timeout_s: float) -> None:
        self._spec = ProcessSpec("reward-shared", SHARED_WORKER, args)
        self._log_dir = log_dir
        self._start_timeout_s = start_timeout_s
        self._slots = Slots(
            1, start=self._start, is_lost=lambda child: child.exited.done(), name="reward-shared"
        )

    async def start(self) -> None:
        await self._slots.start()

    async def score(self, reward: int, episode: bytes, *, timeout_s: float) -> Outcome | None:
        """The verdict. None if the worker was lost or is blocked, perhaps by another call.

        `RemoteError`: the reward raised, or was late.
        """
        try:
            worker = await self._slots.worker(0)
        except RemoteError as exc:  # else it would look like an exception of the reward
            raise ProcessError(str(exc)) from exc
        try:
            return await Client[Rewards](worker).call(
                Rewards.score, reward, episode, timeout_s=timeout_s + BLOCKED_S
            )
        except CallTimeoutError:
            await worker.kill()
        except ChildDiedError:
            pass
        return None

    async def aclose(self) -> None:
        for worker in await self._slots.aclose():
            await worker.aclose(grace_s=1.0)

    async def _start(self, index: int) -> Child:
        return await spawn(self._spec, log_dir=self._log_dir, start_timeout_s=self._start_timeout_s)
