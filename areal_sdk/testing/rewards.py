"""`check_reward`: does a reward give a verdict on every answer of a policy?"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from areal_sdk.errors import ConfigError
from areal_sdk.plugins import validate_options
from areal_sdk.process.user_code import reference_to
from areal_sdk.reward import RewardFn
from areal_sdk.rollout.judging.verdicts import read_verdict
from areal_sdk.testing.conformance import ConformanceError, in_time, require
from areal_sdk.testing.messages import assistant, make_episode
from areal_sdk.types import Episode, Outcome


async def check_reward(
    reward: RewardFn,
    episodes: Sequence[Episode],
    *,
    options: Mapping[str, Any] | None = None,
    timeout_s: float = 10.0,
) -> list[Outcome]:
    """Score `episodes`, then strange ones that a policy may produce; ConformanceError says what is wrong.

    `episodes` should be typical (see `make_episode`). The strange ones are made from the task of the
    first. Returns the verdicts on `episodes`, for your own assertions.
    """
    name = getattr(reward, "__name__", repr(reward))
    require(len(episodes) > 0, "check_reward needs at least one typical episode")
    _check_function(reward, name, options or {})
    verdicts = [await _score(reward, e, options, name, timeout_s) for e in episodes]
    again = [await _score(reward, e, options, name, timeout_s) for e in episodes]
    require(
        verdicts == again,
        f"{name} gave one episode two verdicts: {verdicts} and {again}; derive randomness from the "
        "episode, or declare it in a metric and not in the reward",
    )
    for strange in _strange(episodes[0]):
        await _score(reward, strange, options, name, timeout_s)
    return verdicts


def _check_function(reward: RewardFn, name: str, options: Mapping[str, Any]) -> None:
    require(not inspect.isclass(reward), f"{name} is a class; a reward is a function")
    try:
        reference_to(reward)
    except ConfigError as exc:
        raise ConformanceError(
            f"{name} cannot be loaded by the processes that run rewards: {exc}"
        ) from None
    try:
        validate_options(reward, options, table=f"reward.{name}", skip=1)
    except ConfigError as exc:
        raise ConformanceError(f"{name}: {exc}") from None


async def _score(
    reward: RewardFn,
    episode: Episode,
    options: Mapping[str, Any] | None,
    name: str,
    timeout_s: float,
) -> Outcome:
    what = f"{name} on {_describe(episode)}"
    try:
        verdict = reward(episode, **(options or {}))
        if inspect.isawaitable(verdict):
            verdict = await in_time(verdict, timeout_s=timeout_s, what=what)
        return read_verdict(verdict, episode)
    except ConformanceError:
        raise
    except Exception as exc:
        raise ConformanceError(
            f"{what} raised {type(exc).__name__}: {exc}; a bad answer deserves a low reward, and "
            "what cannot be judged None"
        ) from exc


def _strange(typical: Episode) -> list[Episode]:
    """Unusual episodes that every policy produces at some time, for the task of a typical episode."""
    data = typical.task.data
    texts = ["", "\x00 \ud800 \N{PILE OF POO}", "9" * 5000, "(" * 5000, "la " * 5000]
    episodes = [make_episode(text, data=data) for text in texts]
    only_a_call = [{"role": "user", "content": "?"}, assistant(None, ("tool", "{not json"))]
    episodes.append(make_episode(only_a_call, data=data))
    episodes.append(make_episode("cut off", data=data, truncated=True))
    episodes.append(make_episode(None, data=data))
    return episodes


def _describe(episode: Episode) -> str:
    if not episode.turns:
        return "an episode without turns"
    text = episode.final_text
    return f"the final text {text[:40]!r}{'...' if len(text) > 40 else ''}"
