"""Episodes that may start at once start one after the other, with the event loop in between."""

import asyncio
from pathlib import Path

from areal_sdk.agent import EpisodeContext
from areal_sdk.rollout.tasks import EpisodeRequest
from areal_sdk.testing import ScriptedEngine
from areal_sdk.types import Task
from tests.rollout.playing import serving

NUM_EPISODES = 16


async def test_the_loop_turns_between_the_first_steps_of_two_agents(model_dir: Path) -> None:
    """A first step builds a client, for tens of ms: sixteen in one round would hold everybody up."""
    turns = 0
    began_in: list[int] = []
    loop = asyncio.get_running_loop()

    def turn() -> None:
        nonlocal turns
        turns += 1
        if len(began_in) < NUM_EPISODES:
            loop.call_soon(turn)

    async def agent(task: Task, context: EpisodeContext) -> float:
        began_in.append(turns)
        return 1.0

    requests = [EpisodeRequest(f"task.0.{n}", Task("task"), sibling=n) for n in range(NUM_EPISODES)]
    engine = ScriptedEngine([], model_dir=model_dir)
    async with serving(agent, engine, model_dir) as runner:
        turn()
        await asyncio.gather(*(runner.run(request) for request in requests))
    assert len(set(began_in)) == NUM_EPISODES
