"""Recorded conversations, judged by a reward function: one that a plugin registered, or one of a file."""

import asyncio
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import replace

from areal_sdk import ConfigError, Episode, Outcome, Task
from areal_sdk.reward import RewardFn, as_outcome
from areal_sdk.testing import registered
from areal_sdk_traces.as_run import episode_of
from areal_sdk_traces.book import Book, Fate
from areal_sdk_traces.conversation import Conversation
from areal_sdk_traces.masking import load_function


def load_reward(name: str) -> tuple[str, RewardFn]:
    """The reward of `--reward`, and the name of its scores: NAME, `FILE.py:FUNCTION` or `MODULE:FUNCTION`."""
    if ":" not in name:
        reward: RewardFn = registered("reward", name)
        return name, reward
    reward = load_function(name, "--reward", "a reward's name")
    return name.rpartition(":")[2], reward


def judged(
    found: Iterable[Conversation], name: str, reward: RewardFn, book: Book
) -> Iterator[Conversation]:
    """The conversations with the score `name`. The book says of which the reward gave none, and why."""
    with asyncio.Runner() as runner:
        for one in found:
            task = Task(one.task or one.id, one.data)
            episode = replace(episode_of(one.id, task.id, [one]), task=task)
            try:
                outcome = runner.run(_verdict(reward, episode))
            except ConfigError:
                raise
            except Exception as exc:  # noqa: BLE001 - a reward may raise anything
                outcome = Outcome.abstained(f"{type(exc).__name__}: {exc}")
            if outcome.reward is None:
                why = outcome.message or "it abstained"
                book.write(one.places[0], Fate.FLAW, f"{one.id}: no score by {name}: {why}")
                yield one
            else:
                yield replace(one, scores={**one.scores, name: outcome.reward})


async def _verdict(reward: RewardFn, episode: Episode) -> Outcome:
    verdict = reward(episode)
    return as_outcome(await verdict if inspect.isawaitable(verdict) else verdict, episode)
