"""Write four letters backwards: a skill on strings."""

import random
from collections.abc import Iterator, Sequence
from itertools import product

from areal_sdk import Environment, Message, StepResult, Task

LETTERS = "abcdef"
NUM_DEMONSTRATIONS = 2000


class Reverse(Environment):
    """Success is "d c b a" for "a b c d"."""

    async def reset(self, task: Task) -> Sequence[Message]:
        self.letters: list[str] = task.data["letters"]
        return [{"role": "user", "content": " ".join(self.letters)}]

    async def step(self, message: Message) -> StepResult:
        is_right = (message.get("content") or "").split() == self.letters[::-1]
        return StepResult(reward=float(is_right), done=True, success=is_right)


def tasks(split: str) -> Iterator[Task]:
    """Every seventh string is held out."""
    for number, letters in enumerate(product(LETTERS, repeat=4)):
        if (number % 7 == 0) == (split == "eval"):
            yield Task(id="".join(letters), data={"letters": list(letters)})


def demonstrations() -> Iterator[list[Message]]:
    """A player who gets one letter in ten wrong."""
    generator = random.Random(0)
    known = list(tasks("train"))
    for _ in range(NUM_DEMONSTRATIONS):
        letters = generator.choice(known).data["letters"]
        answer = [
            letter if generator.random() < 0.9 else generator.choice(LETTERS)
            for letter in reversed(letters)
        ]
        yield [
            {"role": "user", "content": " ".join(letters)},
            {"role": "assistant", "content": " ".join(answer)},
        ]
