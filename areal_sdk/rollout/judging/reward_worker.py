"""The entries of the processes that run reward functions.

`main` scores one episode after another, so a reward that blocks or crashes there harms no other episode. `share`
scores many at once, on an event loop, for rewards that mostly wait.
"""

import asyncio
import inspect
import pickle
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast

from areal_sdk.errors import DeadlineError, InfrastructureError
from areal_sdk.plugins import load_plugins
from areal_sdk.process import JSON, Channel, clean_text
from areal_sdk.process.frames import view_of
from areal_sdk.process.pools.workers import Spared
from areal_sdk.process.services import Answer, Answering, Bulk, answer_until_closed
from areal_sdk.process.user_code import REGISTERED, load_user_object
from areal_sdk.rollout.judging.verdicts import portable, read_verdict
from areal_sdk.types import Episode, ErrorKind, Outcome, OutcomeKind

WORKER = "areal_sdk.rollout.judging.reward_worker:main"
SHARED_WORKER = "areal_sdk.rollout.judging.reward_worker:share"

LoadedReward = Callable[..., Any]


class Rewards(Spared, Protocol):
    """Contract of the processes that run reward functions."""

    def score(self, reward: int, episode: Bulk) -> Answer[Outcome]:
        """The verdict of one reward on a pickled episode.

        An outcome with an error is a fault of the machine. An exception of the reward is raised.
        """


def main(channel: Channel, args: Mapping[str, JSON]) -> None:
    """The entry of a worker that scores one episode after another."""
    rewards = _load(args)
    channel.ready()
    with asyncio.Runner() as runner:
        worker = Answering(RewardWorker(rewards), runner=runner)
        while True:
            if (request := channel.receive()) is not None:
                worker.answer(request)


def share(channel: Channel, args: Mapping[str, JSON]) -> None:
    """The entry of the worker that scores many episodes at once, with rewards that await."""
    worker = RewardWorker(_load(args), timeout_s=args["timeout_s"])
    channel.ready()
    asyncio.run(answer_until_closed(channel, worker))


class RewardWorker(Rewards):
    """Runs reward functions: one episode after another in `main`, many at once in `share`."""

    def __init__(self, rewards: Sequence[LoadedReward], *, timeout_s: float | None = None) -> None:
        """`timeout_s`: the deadline of a reward that awaits; None: the caller kills a late worker."""
        self._rewards = rewards
        self._timeout_s = timeout_s

    def idle(self) -> None:
        """Do nothing: a worker answers this call only after the judgement before it has ended, and is then free."""

    def score(self, reward: int, episode: Bulk) -> Answer[Outcome]:
        try:
            judged = _unpacked(episode)
            verdict = self._rewards[reward](judged)
            if inspect.isawaitable(verdict):
                return self._awaited(verdict, judged)
            return _checked(verdict, judged)
        except Exception as exc:  # noqa: BLE001 - raised again, or a fault of the machine
            return _fault(exc)

    async def _awaited(self, verdict: Awaitable[object], episode: Episode) -> Outcome:
        deadline = asyncio.timeout(self._timeout_s)
        try:
            async with deadline:
                return _checked(await verdict, episode)
        except Exception as exc:  # noqa: BLE001 - raised again, or a fault of the machine
            if isinstance(exc, TimeoutError) and deadline.expired():
                exc = DeadlineError(f"no verdict within {self._timeout_s:g} s")
            return _fault(exc)


def _fault(error: Exception) -> Outcome:
    """The outcome for an InfrastructureError: the machine failed. Any other error is the reward's own, and is raised."""
    if isinstance(error, InfrastructureError):
        traceback.print_exception(error)
        return Outcome.failed(ErrorKind.INFRASTRUCTURE, clean_text(str(error)))
    raise error


def _load(args: Mapping[str, JSON]) -> list[LoadedReward]:
    """The rewards by the references and options in `args["rewards"]`, which has None for a reward of other workers."""
    return [
        _of_other_workers
        if spec is None
        else partial(load_reward(spec["reference"]), **_options(spec))
        for spec in args["rewards"]
    ]


def _options(spec: Mapping[str, JSON]) -> dict[str, Any]:
    return {**spec["options"], **{name: Path(spec["options"][name]) for name in spec["paths"]}}


def load_reward(reference: str) -> LoadedReward:
    """A function by file and name, or the one that a plugin of this environment registers."""
    if reference.startswith(REGISTERED):
        plugins = load_plugins()
        reward: LoadedReward = plugins.rewards.get(reference.removeprefix(REGISTERED))
        return reward
    return cast(LoadedReward, load_user_object(reference))


def _of_other_workers(episode: Episode) -> None:
    raise AssertionError("asked of the wrong worker")


def _unpacked(episode: Bulk) -> Episode:
    try:
        return pickle.loads(view_of(episode))  # type: ignore[no-any-return]
    except Exception as exc:
        raise ValueError(
            f"the episode cannot be read in a worker ({type(exc).__name__}: {exc}): keep to plain "
            "values and importable classes in Task.data"
        ) from exc


def _checked(verdict: Any, episode: Episode) -> Outcome:
    outcome = read_verdict(verdict, episode)
    if outcome.kind is OutcomeKind.ERROR:
        raise RuntimeError(outcome.message or "it returned an error")
    return portable(outcome)
