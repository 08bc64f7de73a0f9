"""Reward functions in worker processes, and the verdicts that agents and rewards return.

A call has a hard deadline. A reward that hangs or crashes loses only its own worker, and its error
never becomes a reward of zero. `main` is the entry of a worker: it loads the reward functions once
and scores one episode after another.
"""

import asyncio
import inspect
import math
import pickle
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

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
from areal_sdk.reward import RewardFn, as_outcome
from areal_sdk.types import Episode, Outcome, OutcomeKind

if TYPE_CHECKING:
    from areal_sdk.gateway.sessions.session import Session

Weighted = tuple[float, Outcome]


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
        return _read(reply.payload)


def read_verdict(result: Any, episode: Episode) -> Outcome:
    """`result` as an `Outcome`; ValueError if it is not a verdict.

    numpy and torch scalars count as numbers.
    """
    if hasattr(result, "item") and not isinstance(result, Outcome):
        result = result.item()
    outcome = as_outcome(result, episode)
    per_turn = tuple(None if reward is None else float(reward) for reward in outcome.turn_rewards)
    outcome = replace(outcome, turn_rewards=per_turn)
    numbers = (outcome.reward, *outcome.turn_rewards, *outcome.metrics.values())
    if not all(number is None or math.isfinite(number) for number in numbers):
        raise ValueError(f"rewards and metrics must be finite numbers: {outcome}")
    if outcome.turn_rewards and len(outcome.turn_rewards) != len(episode.turns):
        raise ValueError(
            f"{len(outcome.turn_rewards)} turn rewards for an episode of {len(episode.turns)} turns"
        )
    if outcome.kind is OutcomeKind.REWARD and outcome.reward is None:
        raise ValueError("an outcome of kind `reward` needs a reward: use Outcome.scored")
    if all(reward is None for reward in per_turn):
        outcome = replace(outcome, turn_rewards=())  # no turn has one: the episode's is trained
    return outcome


def combine(verdicts: Mapping[str, Weighted], *, num_turns: int) -> Outcome:
    """The weighted sum of the verdicts. It abstains if one verdict abstains: a sum without one of
    its terms is another quantity, not a lower reward.

    >>> half = Outcome.scored(0.5)
    >>> combine({"style": (2.0, half), "answer": (1.0, Outcome.scored(1.0))}, num_turns=1).reward
    2.0
    >>> no_key = Outcome.abstained("no key")
    >>> combine({"style": (2.0, half), "answer": (1.0, no_key)}, num_turns=1).message
    "reward 'answer': no key"
    """
    for name, (_, outcome) in verdicts.items():
        if outcome.kind is OutcomeKind.ABSTAIN or outcome.reward is None:
            return Outcome.abstained(f"reward {name!r}: {outcome.message or 'it gave no verdict'}")
    metrics: dict[str, float] = {}
    for name, (_, outcome) in verdicts.items():
        metrics[f"reward/{name}"] = outcome.reward or 0.0
        metrics.update({f"{name}/{key}": value for key, value in outcome.metrics.items()})
    outcomes = [outcome for _, outcome in verdicts.values()]
    claims = [outcome.success for outcome in outcomes if outcome.success is not None]
    return Outcome.scored(
        sum(weight * (outcome.reward or 0.0) for weight, outcome in verdicts.values()),
        success=all(claims) if claims else all(outcome.reward == 1.0 for outcome in outcomes),
        turn_rewards=_per_turn(list(verdicts.values()), num_turns),
        metrics=metrics,
    )


def _per_turn(verdicts: Sequence[Weighted], num_turns: int) -> tuple[float | None, ...]:
    """The sum for each turn if any verdict has turn rewards; a verdict without counts for the last turn."""
    if not any(outcome.turn_rewards for _, outcome in verdicts):
        return ()
    total: list[float | None] = [None] * num_turns
    for weight, outcome in verdicts:
        per_turn = outcome.turn_rewards or (*[None] * (num_turns - 1), outcome.reward)
        for turn, reward in enumerate(per_turn):
            if reward is not None:
                total[turn] = (total[turn] or 0.0) + weight * reward
    return tuple(total)


def posted_outcome(session: "Session") -> Outcome | None:
    """The posted rewards: the latest for each turn, and for the episode. None if there is none.

    If turns have rewards, the reward of the episode is added to that of the last turn.
    """
    whole = [posted.reward for posted in session.rewards if posted.turn is None]
    by_turn = {posted.turn: posted.reward for posted in session.rewards if posted.turn is not None}
    if not by_turn:
        return Outcome.scored(whole[-1]) if whole else None
    if whole:
        last = len(session.turns) - 1
        by_turn[last] = by_turn.get(last, 0.0) + whole[-1]
    return Outcome.scored(
        sum(by_turn.values()),
        success=whole[-1] == 1.0 if whole else None,
        turn_rewards=tuple(by_turn.get(turn) for turn in range(len(session.turns))),
    )


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
