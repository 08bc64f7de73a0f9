"""An agent that a random tiny model learns within a minute: its answers shall be bytes below 128.

The reward is a function, so that reward workers take part. It varies from the first step. A quarter of the
questions is held out.
"""

import itertools
import random
from collections.abc import Callable, Iterator

import areal_sdk
from areal_sdk import Agent, Episode, EpisodeContext, Outcome, Task

LETTERS = "abcdefgh"
NUM_HELD_OUT = 16
NUM_TOKENS = 8
"""Tokens of each of the two turns."""
SUCCESS = 0.9
"""Share of the sampled tokens that must be such bytes."""


class PlainBytes(Agent):
    async def run(self, task: Task, context: EpisodeContext) -> None:
        messages = [{"role": "user", "content": task.data["question"]}]
        for _ in range(2):
            turn = await context.generate(messages, max_new_tokens=NUM_TOKENS)
            messages += [turn.message, {"role": "user", "content": "more"}]


def plain_bytes(episode: Episode) -> Outcome:
    """The share of the sampled tokens that are bytes below 128: a half for a random model."""
    sampled = [token for turn in episode.turns for token in turn.output_tokens]
    share = sum(token < 128 for token in sampled) / max(1, len(sampled))
    return Outcome.scored(share, success=share >= SUCCESS)


@areal_sdk.hookimpl
def register_rewards(register: Callable[[str, object], None]) -> None:
    register("plain_bytes", plain_bytes)


def tasks(split: str) -> Iterator[Task]:
    pairs = ["".join(pair) for pair in itertools.product(LETTERS, repeat=2)]
    random.Random(0).shuffle(pairs)
    for pair in pairs[NUM_HELD_OUT:] if split == "train" else pairs[:NUM_HELD_OUT]:
        yield Task(f"{split}-{pair}", {"question": pair})
