"""Put three digits into order: one answer, and a skill that a weak player half has."""

import random
from collections.abc import Iterator, Sequence

from areal_sdk import Environment, Message, StepResult, Task

NUM_DEMONSTRATIONS = 2000


class SortDigits(Environment):
    """Success is "2 5 7" for "7 2 5"."""

    async def reset(self, task: Task) -> Sequence[Message]:
        self.digits: list[str] = task.data["digits"]
        return [{"role": "user", "content": " ".join(self.digits)}]

    async def step(self, message: Message) -> StepResult:
        is_right = (message.get("content") or "").split() == sorted(self.digits)
        return StepResult(reward=float(is_right), done=True, success=is_right)


def tasks(split: str) -> Iterator[Task]:
    """Every seventh number is held out."""
    for number in range(1000):
        if (number % 7 == 0) == (split == "eval"):
            yield Task(id=f"{number:03}", data={"digits": list(f"{number:03}")})


def demonstrations() -> Iterator[list[Message]]:
    """A player who sorts six in ten, and puts the digits into any order otherwise."""
    generator = random.Random(0)
    known = list(tasks("train"))
    for _ in range(NUM_DEMONSTRATIONS):
        digits = generator.choice(known).data["digits"]
        answer = sorted(digits) if generator.random() < 0.6 else generator.sample(digits, 3)
        yield [
            {"role": "user", "content": " ".join(digits)},
            {"role": "assistant", "content": " ".join(answer)},
        ]
