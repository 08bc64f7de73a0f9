"""An agent of two turns. Its prompts may depend on the environment."""

import os
from collections.abc import Iterator

from areal_sdk import Agent, EpisodeContext, Task

WORD = "FORK_TEST_WORD"


class Pair(Agent):
    async def run(self, task: Task, context: EpisodeContext) -> float:
        messages = [{"role": "user", "content": task.data["prompt"]}]
        num_ascii = 0
        for number in range(2):
            turn = await context.generate(messages, max_new_tokens=12)
            word = os.environ.get(WORD, "more")
            messages += [turn.message, {"role": "user", "content": f"{word} {number}"}]
            num_ascii += sum(token < 128 for token in turn.output_tokens)
        return num_ascii / 24


def tasks(split: str) -> Iterator[Task]:
    for number in range(8):
        yield Task(f"{split}-{number}", {"prompt": "abcdefgh"[number]})
