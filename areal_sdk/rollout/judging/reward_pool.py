"""Reward functions in worker processes.

A call has a hard deadline. A reward that hangs or crashes loses only its own worker, and its error
never becomes a reward of zero. A worker scores one episode after another (`reward_worker.py`). Rewards
that await share one more worker, which scores many episodes at once.
"""

import asyncio
import inspect
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from areal_sdk.errors import (
    CallTimeoutError,
    ChildDiedError,
    DeadlineError,
    InfrastructureError,
    ProcessError,
    RemoteError,
    RewardError,
)
from areal_sdk.process import JSON, Child, ProcessSpec, spawn
from areal_sdk.process.pools.supervision import Slots
from areal_sdk.process.pools.workers import WorkerPool
from areal_sdk.process.services import Client
from areal_sdk.process.spec import MemoryLimit
from areal_sdk.process.user_code import reference_to
from areal_sdk.reward import RewardFn
from areal_sdk.rollout.judging.reward_worker import SHARED_WORKER, WORKER, Rewards
from areal_sdk.rollout.judging.verdicts import combine
from areal_sdk.types import Episode, Outcome, OutcomeKind

BLOCKED_S = 2.0
"""Seconds after the deadline of a call. A worker that has not ended the call by then is blocked."""


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """One reward function, by a reference that any process can load."""

    name: str
    reference: str
    """`file.py::function` or `package.module:function`."""
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    awaits: bool = False
    """Whether the reward is `async def`: many episodes are then judged at once in one process."""
    python: str = ""
    """The Python of the environment in which the reward runs; empty: that of this process."""

    @classmethod
    def of(
        cls,
        name: str,
        reward: RewardFn,
        *,
        weight: float = 1.0,
        options: Mapping[str, Any] | None = None,
    ) -> Self:
        """The spec of a function; ConfigError if another process could not import the function."""
        awaits = inspect.iscoroutinefunction(reward)
        return cls(name, reference_to(reward), weight, options or {}, awaits)


class RewardPool:
    """Scores episodes with every reward, weighted. `async with` starts and ends its workers."""

    def __init__(
        self,
        rewards: Sequence[RewardSpec],
        *,
        log_dir: Path,
        size: int = 2,
        timeout_s: float = 30.0,
        start_timeout_s: float = 60.0,
        isolated_memory: MemoryLimit | None = None,
    ) -> None:
        self._rewards = tuple(rewards)
        self._timeout_s = timeout_s
        args = {
            "timeout_s": timeout_s,
            "rewards": [None if r.python else _order(r) for r in self._rewards],
        }
        self._shared = (
            SharedWorker(args, log_dir=log_dir, start_timeout_s=start_timeout_s)
            if any(reward.awaits for reward in self._rewards)
            else None
        )
        make_pool = partial(
            WorkerPool,
            WORKER,
            size=size,
            log_dir=log_dir,
            start_timeout_s=start_timeout_s,
            spares_cancelled=True,
        )
        self._pool = make_pool(args=args, name="reward")
        self._isolated = {
            index: make_pool(
                args={"rewards": [None] * index + [_order(reward)]},
                name=f"reward-{reward.name}",
                python=reward.python,
                memory=isolated_memory,
            )
            for index, reward in enumerate(self._rewards)
            if reward.python
        }
        """Workers in other environments, by the index of the reward."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(reward.name for reward in self._rewards)

    async def __aenter__(self) -> Self:
        try:
            if len(self._isolated) < len(self._rewards):
                await self._pool.start()
            for pool in self._isolated.values():
                await pool.start()
            if self._shared is not None:
                await self._shared.start()
        except BaseException:
            await self._aclose_pools()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._shared is not None:
            await self._shared.aclose()
        await self._aclose_pools()

    async def _aclose_pools(self) -> None:
        for pool in (self._pool, *self._isolated.values()):
            await pool.aclose()

    async def score(self, episode: Episode) -> Outcome:
        """The weighted verdict of all rewards. `RewardError` if a reward gives none.

        Cancelling this call cancels only this episode's rewards. A reward that awaits is cancelled;
        one that computes runs until it returns, or until its deadline.
        """
        payload = _packed(episode)
        asked = (self._ask(index, reward, payload) for index, reward in enumerate(self._rewards))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        verdicts = {}
        for reward, answer in zip(self._rewards, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            verdicts[reward.name] = (reward.weight, answer)
        last = {turn.policy: number for number, turn in enumerate(episode.turns)}
        return combine(verdicts, num_turns=len(episode.turns), last_turns=last.values())

    async def _ask(self, index: int, reward: RewardSpec, episode: bytes) -> Outcome:
        what = f"reward {reward.name!r}"
        try:
            outcome = await self._outcome(index, reward, episode)
        except RemoteError as exc:
            if exc.kind == DeadlineError.__name__:
                raise RewardError(
                    f"{what}: {exc.message}: make it faster, or raise rollout.reward_timeout_s"
                ) from exc
            message = f"{what}: {exc.kind}: {exc.message}"
            raise RewardError.at(exc.place, message, trace=exc.trace) from exc
        except CallTimeoutError as exc:
            raise RewardError(
                f"{what}: no verdict within {self._timeout_s:g} s, so its worker was killed: make "
                "it faster, or raise rollout.reward_timeout_s"
            ) from exc
        except ChildDiedError as exc:
            raise RewardError(f"{what} took its worker down: {exc}") from exc
        except ProcessError as exc:
            raise InfrastructureError(f"{what}: {exc}") from exc
        if outcome.kind is OutcomeKind.ERROR:  # of the machine: a sandbox that cannot start
            raise InfrastructureError(f"{what}: {outcome.message}")
        return outcome

    async def _outcome(self, index: int, reward: RewardSpec, episode: bytes) -> Outcome:
        """The answer of a worker. If the shared worker does not answer, the question goes to a worker that serves
        this call alone: there a reward that blocks or crashes harms no other, and the error names this episode."""
        if self._shared is not None and reward.awaits:
            outcome = await self._shared.score(index, episode, timeout_s=self._timeout_s)
            if outcome is not None:
                return outcome
        workers = Client[Rewards](self._isolated.get(index, self._pool))
        return await workers.call(Rewards.score, index, episode, timeout_s=self._timeout_s)


class SharedWorker:
    """One process that judges many episodes at once, with rewards that await. It is started again when it is lost.

    A judge behind an endpoint waits for seconds and computes nothing, so a process for each call would
    be waste. The price is that a reward which blocks or crashes holds up its neighbours. So this worker
    is only the fast way: a call that it does not answer is made again, in a worker for this call alone.
    """

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


def _order(reward: RewardSpec) -> Mapping[str, Any]:
    paths = [name for name, value in reward.options.items() if isinstance(value, Path)]
    options = {**reward.options, **{name: str(reward.options[name]) for name in paths}}
    return {
        "name": reward.name,
        "reference": reward.reference,
        "options": options,
        "paths": paths,  # JSON has no paths
    }


def _packed(episode: Episode) -> bytes:
    try:
        return pickle.dumps(episode, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as exc:
        raise RewardError(
            f"task {episode.task.id!r} cannot be sent to a reward's worker ({exc}): keep to plain "
            "values and importable classes in Task.data"
        ) from exc
