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
    """What dispatcher and evaluation need of an `EpisodeRunner`."""

    async def run(self, plan: EpisodePlan) -> Episode:
        """Play a plan. Failures of the episode are in its outcome; only bugs raise."""
        ...
