"""A runner of episodes whose outcomes are given."""

import asyncio

from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.types import Episode, Outcome
from tests.rollout.simulation import turn


class Scripted:
    """Outcomes by task id and sample."""

    def __init__(self, outcomes: dict[str, list[Outcome]], *, is_silent: bool = False) -> None:
        self.outcomes = outcomes
        self.is_silent = is_silent
        """Whether its episodes never call the model."""
        self.num_running = 0
        self.max_running = 0

    async def run(self, request: EpisodeRequest) -> Episode:
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        await asyncio.sleep(1.0)
        self.num_running -= 1
        outcome = self.outcomes[request.task.id][request.sibling]
        turns = () if self.is_silent else (turn(0),)
        return Episode(request.id, request.task, turns, outcome)
