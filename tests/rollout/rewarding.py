"""Rewards of `sample_rewards`, and episodes to judge."""

from pathlib import Path
from typing import Any

from areal_sdk.rollout.judging.reward_pool import RewardSpec
from areal_sdk.types import Episode, Outcome, Task
from tests.rollout import sample_rewards
from tests.rollout.simulation import turn

FILE = Path(sample_rewards.__file__)


def spec(name: str, weight: float = 1.0, **options: Any) -> RewardSpec:
    return RewardSpec(name, f"{FILE}::{name}", weight, options)


def episode(text: str = "one two", num_turns: int = 2) -> Episode:
    turns = [turn(0) for _ in range(num_turns)]
    turns[-1].message.update(content=text)
    return Episode("e", Task("t"), tuple(turns), Outcome.abstained())
