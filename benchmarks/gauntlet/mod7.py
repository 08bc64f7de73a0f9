"""Add modulo 7: forty-nine sums, learnt by heart."""

import random
from collections.abc import Iterator, Sequence
from itertools import product

from areal_sdk import Environment, Message, StepResult, Task

NUM_DEMONSTRATIONS = 2000


class Mod7(Environment):
    """Success is "1" for "3 5"."""

    async def reset(self, task: Task) -> Sequence[Message]:
        self.left, self.right = task.data["left"], task.data["right"]
        return [{"role": "user", "content": f"{self.left} {self.right}"}]

    async def step(self, message: Message) -> StepResult:
        is_right = (message.get("content") or "").strip() == str((self.left + self.right) % 7)
        return StepResult(reward=float(is_right), done=True, success=is_right)


def tasks(split: str) -> Iterator[Task]:
    """There are few, so the held-out tasks are training tasks too."""
    for left, right in product(range(7), repeat=2):
        yield Task(id=f"{split}-{left}{right}", data={"left": left, "right": right})


def demonstrations() -> Iterator[list[Message]]:
    """A player who knows the sum four times in ten, and names any number otherwise."""
    generator = random.Random(0)
    for _ in range(NUM_DEMONSTRATIONS):
        left, right = generator.randrange(7), generator.randrange(7)
        knows = generator.random() < 0.4
        answer = (left + right) % 7 if knows else generator.randrange(7)
        yield [
            {"role": "user", "content": f"{left} {right}"},
            {"role": "assistant", "content": str(answer)},
        ]
