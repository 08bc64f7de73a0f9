"""What is to be played, and whoever can play it."""

from dataclasses import dataclass
from typing import Protocol

from areal_sdk.types import Episode, Task


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """One attempt to make. `id` names the episode across its retries."""

    id: str
    task: Task
    group: str = ""
    sibling: int = 0
    epoch: int = 0


class PlaysEpisodes(Protocol):
    """What an evaluation needs of an `EpisodeRunner`."""

    async def run(self, plan: EpisodePlan) -> Episode:
        """Play a plan. Failures of the episode are in its outcome; only bugs raise."""
        ...


class WatchesEpisodes(PlaysEpisodes, Protocol):
    """What the dispatcher needs besides: how old a running episode is getting."""

    def oldest_version(self, episode_id: str) -> int | None:
        """The version of the first token of a running episode; None: it has no token yet."""
        ...
