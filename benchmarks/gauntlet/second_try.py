"""Self-correction: each letter stands for two numbers; after a "no" the other one is right."""

import random
from collections.abc import Iterator, Sequence

from areal_sdk import Environment, Message, StepResult, Task

NUMBERS = {"a": ("0", "7"), "b": ("1", "4"), "c": ("2", "9"), "d": ("3", "6"), "e": ("5", "8")}
NUM_DEMONSTRATIONS = 2000


class SecondTry(Environment):
    """Success is the right number at the first or second try."""

    async def reset(self, task: Task) -> Sequence[Message]:
        self.number: str = task.data["number"]
        self.is_second = False
        return [{"role": "user", "content": task.data["letter"]}]

    async def step(self, message: Message) -> StepResult:
        if (message.get("content") or "").strip() == self.number:
            return StepResult(reward=1.0, done=True, success=True)
        if self.is_second:
            return StepResult(reward=0.0, done=True, success=False)
        self.is_second = True
        return StepResult([{"role": "user", "content": "no"}])


def tasks(split: str) -> Iterator[Task]:
    """There are ten, so the held-out tasks are training tasks too."""
    for letter, numbers in NUMBERS.items():
        for number in numbers:
            yield Task(id=f"{split}-{number}", data={"letter": letter, "number": number})


def demonstrations() -> Iterator[list[Message]]:
    """A player who names any number at times, and corrects itself three times in ten."""
    generator = random.Random(0)
    known = list(tasks("train"))
    for _ in range(NUM_DEMONSTRATIONS):
        data = generator.choice(known).data
        numbers = NUMBERS[data["letter"]]
        first = generator.choice(numbers if generator.random() < 0.7 else "0123456789")
        messages: list[Message] = [
            {"role": "user", "content": data["letter"]},
            {"role": "assistant", "content": first},
        ]
        if first != data["number"]:
            others = [number for number in numbers if number != first]
            second = generator.choice(others if generator.random() < 0.3 else "0123456789")
            messages += [
                {"role": "user", "content": "no"},
                {"role": "assistant", "content": second},
            ]
        yield messages
