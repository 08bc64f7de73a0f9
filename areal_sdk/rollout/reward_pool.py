"""Rewards in worker processes with a hard deadline: one that hangs or crashes costs only itself."""

import asyncio
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from areal_sdk.errors import (
    CallTimeoutError,
    ChildDiedError,
    InfrastructureError,
    ProcessError,
    RemoteError,
    RewardError,
)
from areal_sdk.process.user_code import reference_to
from areal_sdk.process.workers import WorkerPool
from areal_sdk.reward import RewardFn
from areal_sdk.rollout.scoring import combine
from areal_sdk.types import Episode, Outcome, OutcomeKind

WORKER = "areal_sdk.rollout.reward_worker:main"


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """One reward function, by a reference that any process can load."""

    name: str
    reference: str
    """`file.py::function` or `package.module:function`."""
    weight: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        name: str,
        reward: RewardFn,
        *,
        weight: float = 1.0,
        options: Mapping[str, Any] | None = None,
    ) -> Self:
        """For a function; ConfigError for one that another process could not find."""
        return cls(name, reference_to(reward), weight, options or {})


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
    ) -> None:
        self._rewards = tuple(rewards)
        self._timeout_s = timeout_s
        self._pool = WorkerPool(
            WORKER,
            size=size,
            log_dir=log_dir,
            args={
                "rewards": [
                    {"name": r.name, "reference": r.reference, "options": dict(r.options)}
                    for r in self._rewards
                ]
            },
            name="reward",
            start_timeout_s=start_timeout_s,
            spares_cancelled=True,
        )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(reward.name for reward in self._rewards)

    async def __aenter__(self) -> Self:
        await self._pool.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._pool.aclose()

    async def score(self, episode: Episode) -> Outcome:
        """The weighted verdict of all rewards; `RewardError` when one gives none.

        Cancelling it ends these judgements and no other: what is awaited in a worker is cancelled,
        what computes there runs to its end, or to its deadline.
        """
        payload = _packed(episode)
        asked = (self._ask(index, reward, payload) for index, reward in enumerate(self._rewards))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        verdicts = {}
        for reward, answer in zip(self._rewards, answers, strict=True):
            if isinstance(answer, BaseException):
                raise answer
            verdicts[reward.name] = (reward.weight, answer)
        return combine(verdicts, num_turns=len(episode.turns))

    async def _ask(self, index: int, reward: RewardSpec, episode: bytes) -> Outcome:
        what = f"reward {reward.name!r}"
        try:
            reply = await self._pool.call(
                "score", {"reward": index}, [episode], timeout_s=self._timeout_s
            )
        except RemoteError as exc:
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
        return _read(reply.payload)


def _packed(episode: Episode) -> bytes:
    try:
        return pickle.dumps(episode, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as exc:
        raise RewardError(
            f"task {episode.task.id!r} cannot be sent to a reward's worker ({exc}): keep to plain "
            "values and importable classes in Task.data"
        ) from exc


def _read(payload: Any) -> Outcome:
    """The verdict that `reward_worker` wrote."""
    return Outcome(
        OutcomeKind(payload["kind"]),
        reward=payload["reward"],
        turn_rewards=tuple(payload["turn_rewards"]),
        success=payload["success"],
        metrics=payload["metrics"],
        message=payload["message"],
    )
