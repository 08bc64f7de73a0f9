"""The reward `model`: a trained reward model judges the recorded tokens of an episode.

Torch is imported where a reward is computed, which is in a process of its own.
"""

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from areal_sdk.errors import ConfigError
from areal_sdk.models.families import check_reward_model
from areal_sdk.types import Episode

if TYPE_CHECKING:
    from areal_sdk.fsdp.reward_model import Judge

EXPORTS = ("", "checkpoints/final", "checkpoints/best")
"""Places of a reward model in the given directory, which may be a run's."""


def find_reward_model(path: str) -> str:
    """The directory of the reward model in `path`: a run of `areal-sdk reward-model`, or its model."""
    for export in EXPORTS:
        directory = Path(path).expanduser() / export
        if (directory / "config.json").is_file():
            try:
                check_reward_model(directory)
            except ConfigError as exc:
                raise ValueError(str(exc)) from None
            return str(directory.absolute())
    raise ValueError(f"no model in {path}: give a run of areal-sdk reward-model that has ended")


RewardModelPath = Annotated[str, AfterValidator(find_reward_model)]


def model(episode: Episode, *, path: RewardModelPath) -> float:
    """The reward of the tokens of the episode's last turn: its prompt as the model read it, and its answer as sampled."""
    if not episode.turns:
        raise ValueError("no turn to judge: the agent never called the model")
    tokens = episode.turns[-1].tokens
    if not tokens:
        raise ValueError(
            "a reward model judges tokens, and the provider that answered gives only text"
        )
    return _judge(path).reward(tokens)


@lru_cache(maxsize=2)
def _judge(path: str) -> "Judge":
    from areal_sdk.fsdp.reward_model import Judge

    return Judge(Path(path))
