"""Six calls an episode, each with a slow tool: log-normal, median 0.5 s, between 0.1 and 5 s."""

import asyncio
import random
from collections.abc import Iterator

from areal_sdk import Agent, EpisodeContext, Task

NUM_CALLS = 6


class SlowTools(Agent):
    """The reward varies within a group whatever the model says, so that every step trains."""

    async def run(self, task: Task, context: EpisodeContext) -> float:
        generator = random.Random(context.seed)
        messages = [{"role": "user", "content": task.data["question"]}]
        sampled: list[int] = []
        for _ in range(NUM_CALLS):
            turn = await context.generate(messages, max_new_tokens=8)
            sampled += turn.output_tokens
            await asyncio.sleep(min(5.0, max(0.1, 0.5 * generator.lognormvariate(0.0, 1.0))))
            messages += [turn.message, {"role": "user", "content": "ok"}]
        return sum(token % 97 for token in sampled) / (97 * len(sampled))


def tasks(split: str) -> Iterator[Task]:
    for index in range(1000):
        yield Task(f"{split}-{index}", {"question": f"Say something about {index}."})
