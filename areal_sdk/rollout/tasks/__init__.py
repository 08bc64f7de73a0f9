"""The tasks of a run: their source, the order in which they are issued, and the requests to play them."""

from areal_sdk.rollout.tasks.issued import (
    EpisodeRequest,
    IssuedTask,
    PlaysEpisodes,
    TaskBook,
    TaskKey,
    seed_of_agent,
    stable_seed,
)
from areal_sdk.rollout.tasks.source import TaskSource
from areal_sdk.rollout.tasks.stream import BLOCK, TaskStream

__all__ = [
    "BLOCK",
    "EpisodeRequest",
    "IssuedTask",
    "PlaysEpisodes",
    "TaskBook",
    "TaskKey",
    "TaskSource",
    "TaskStream",
    "seed_of_agent",
    "stable_seed",
]
