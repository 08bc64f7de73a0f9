"""Reward functions in worker processes.

A call has a hard deadline. A reward that hangs or crashes loses only its own worker, and its error
never becomes a reward of zero. `main` is the entry of a worker: it loads the reward functions once
and scores one episode after another.
"""

import asyncio
import inspect
import pickle
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
from areal_sdk.process import JSON, Channel, Request, clean_text
from areal_sdk.process.user_code import load_user_object, reference_to
from areal_sdk.process.workers import IDLE, WorkerPool
from areal_sdk.reward import RewardFn
from areal_sdk.rollout.verdicts import combine, read_verdict
from areal_sdk.types import Episode, ErrorKind, Outcome, OutcomeKind

WORKER = "areal_sdk.rollout.rewards:main"

LOOK_EVERY_S = 0.1
"""Interval at which a worker checks whether the reward that it awaits was cancelled."""


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
        """The spec of a function; ConfigError if another process could not import the function."""
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
        outcome = _read(reply.payload)
        if (
            outcome.kind is OutcomeKind.ERROR
        ):  # the machine's fault, such as a sandbox that cannot start
            raise InfrastructureError(f"{what}: {outcome.message}")
        return outcome


def main(channel: Channel, args: Mapping[str, JSON]) -> None:
    """The entry of a worker. `args["rewards"]` has a reference and options for each reward."""
    rewards = [
        partial(load_user_object(spec["reference"]), **spec["options"]) for spec in args["rewards"]
    ]
    channel.ready()
    with asyncio.Runner() as runner:
        while True:
            request = channel.receive()
            if request is None:
                continue
            if request.method == IDLE:
                request.reply()
                continue
            try:
                episode = _unpacked(request.buffers[0])
                outcome = _verdict(rewards[request.payload["reward"]], episode, runner, request)
            except asyncio.CancelledError:
                if not request.cancelled:
                    raise
            except InfrastructureError as exc:  # the pool raises it again
                traceback.print_exc()
                request.reply(_write(Outcome.failed(ErrorKind.INFRASTRUCTURE, str(exc))))
            except Exception as exc:  # noqa: BLE001 - the pool raises it as RewardError
                traceback.print_exc()
                request.fail(exc)
            else:
                request.reply(_write(outcome))


def _unpacked(episode: bytes | memoryview) -> Episode:
    try:
        return pickle.loads(episode)  # type: ignore[no-any-return]
    except Exception as exc:
        raise ValueError(
            f"the episode cannot be read in a worker ({type(exc).__name__}: {exc}): keep to plain "
            "values and importable classes in Task.data"
        ) from exc


def _verdict(
    reward: Callable[[Episode], object],
    episode: Episode,
    runner: asyncio.Runner,
    request: Request,
) -> Outcome:
    verdict: Any = reward(episode)
    if inspect.isawaitable(verdict):
        verdict = runner.run(_unless_cancelled(verdict, request))
    outcome = read_verdict(verdict, episode)
    if outcome.kind is OutcomeKind.ERROR:
        raise RuntimeError(outcome.message or "it returned an error")
    return outcome


async def _unless_cancelled(verdict: Awaitable[Any], request: Request) -> Any:
    """The awaited verdict. It is cancelled when the request is."""
    judging = asyncio.create_task(_wait_for(verdict))
    while not (await asyncio.wait({judging}, timeout=LOOK_EVERY_S))[0]:
        if request.cancelled:
            judging.cancel()
    return judging.result()


async def _wait_for(verdict: Awaitable[Any]) -> Any:
    return await verdict


def _write(outcome: Outcome) -> JSON:
    return {
        "kind": outcome.kind.value,
        "reward": None if outcome.reward is None else float(outcome.reward),
        "turn_rewards": [None if r is None else float(r) for r in outcome.turn_rewards],
        "success": None if outcome.success is None else bool(outcome.success),
        "metrics": {clean_text(str(name)): float(value) for name, value in outcome.metrics.items()},
        "message": clean_text(str(outcome.message)),
    }


def _packed(episode: Episode) -> bytes:
    try:
        return pickle.dumps(episode, protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as exc:
        raise RewardError(
            f"task {episode.task.id!r} cannot be sent to a reward's worker ({exc}): keep to plain "
            "values and importable classes in Task.data"
        ) from exc


def _read(payload: Any) -> Outcome:
    """The outcome that `_write` encoded."""
    return Outcome(
        OutcomeKind(payload["kind"]),
        reward=payload["reward"],
        turn_rewards=tuple(payload["turn_rewards"]),
        success=payload["success"],
        metrics=payload["metrics"],
        message=payload["message"],
    )
