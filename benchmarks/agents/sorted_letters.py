"""An agent that puts three letters in order: `cab` -> `abc`. Its held-out words are never trained."""

import itertools
import random
from collections.abc import Iterator

from openai import AsyncOpenAI

from areal_sdk import Agent, EpisodeContext, Task

LETTERS = "abcdef"
NUM_HELD_OUT = 24


def words(split: str) -> list[str]:
    """All orders of three of six letters, a fifth of them held out."""
    found = ["".join(word) for word in itertools.permutations(LETTERS, 3)]
    random.Random(0).shuffle(found)
    return found[NUM_HELD_OUT:] if split == "train" else found[:NUM_HELD_OUT]


class SortedLetters(Agent):
    """Reward 1 for the right order."""

    async def run(self, task: Task, context: EpisodeContext) -> float:
        client = AsyncOpenAI(
            base_url=context.base_url, api_key=context.api_key, http_client=context.http_client
        )
        completion = await client.chat.completions.create(
            model=context.model,
            messages=[{"role": "user", "content": task.data["word"]}],
            max_tokens=5,
        )
        return float(completion.choices[0].message.content == task.data["answer"])


def tasks(split: str) -> Iterator[Task]:
    for word in words(split):
        yield Task(f"{split}-{word}", {"word": word, "answer": "".join(sorted(word))})
