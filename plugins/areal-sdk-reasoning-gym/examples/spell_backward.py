"""Short words spelt backward, by a model from nothing: a few demonstrations, then the family's reward.

    areal-sdk train examples/spell_backward.py --config examples/spell_backward.toml

The demonstrations are of training words, and one letter in four is wrong: they teach the format, the
reward teaches the order. The held-out words are in none of the two.
"""

import random
from collections.abc import Iterator

from areal_sdk import Message, Task
from areal_sdk_reasoning_gym.dataset import tasks as reasoning_gym_tasks
from areal_sdk_reasoning_gym.environment import ReasoningGym

WORDS = {"spell_backward": {"min_word_len": 3, "max_word_len": 3}}


class SpellBackward(ReasoningGym):
    """reasoning-gym without instructions to the model: its whole answer is the reversed word."""

    def __init__(self) -> None:
        super().__init__(instructions="")


def tasks(split: str) -> Iterator[Task]:
    return reasoning_gym_tasks(split, families="spell_backward", config=WORDS, count=2000)


def demonstrations() -> Iterator[list[Message]]:
    generator = random.Random(0)
    for task in tasks("train"):
        letters = [
            letter if generator.random() < 0.75 else generator.choice("aeinorst")
            for letter in task.data["answer"]
        ]
        yield [
            {"role": "user", "content": task.data["question"]},
            {"role": "assistant", "content": "".join(letters)},
        ]
