"""An agent that computes: 20 ms of pure Python before each of its turns, as a parser or a checker does."""

import os
import time
from collections.abc import Iterator

from areal_sdk import Agent, EpisodeContext, Task

NUM_TURNS = 4
BUSY_S = float(os.environ.get("AREAL_BENCH_BUSY_S", "0.02"))


class Busy(Agent):
    async def run(self, task: Task, context: EpisodeContext) -> float:
        messages = [{"role": "user", "content": task.data["question"]}]
        for _ in range(NUM_TURNS):
            compute(BUSY_S)
            turn = await context.generate(messages, max_new_tokens=16)
            messages += [turn.message, {"role": "user", "content": "more"}]
        return 1.0


def compute(seconds: float) -> int:
    """Compute for that much CPU time of this thread, however busy the machine is."""
    until, total = time.thread_time() + seconds, 0
    while time.thread_time() < until:
        total += sum(range(200))
    return total


def tasks(split: str) -> Iterator[Task]:
    for index in range(1024):
        yield Task(f"{split}-{index}", {"question": "abcdefgh"[index % 8]})
