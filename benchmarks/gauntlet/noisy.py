"""A judge who errs: name the largest of three digits, where one reward in five is the wrong one."""

import itertools
import random
from collections.abc import Iterator, Sequence

from areal_sdk import Environment, Message, StepResult, Task

SHARE_WRONG = 0.2
NUM_DEMONSTRATIONS = 2000
_games = itertools.count()


class Noisy(Environment):
    """Success is the truth; the reward is what the judge says."""

    def __init__(self) -> None:
        self._judge = random.Random(next(_games))

    async def reset(self, task: Task) -> Sequence[Message]:
        self.digits: list[str] = task.data["digits"]
        return [{"role": "user", "content": " ".join(self.digits)}]

    async def step(self, message: Message) -> StepResult:
        is_right = (message.get("content") or "").strip() == max(self.digits)
        errs = self._judge.random() < SHARE_WRONG
        return StepResult(reward=float(is_right != errs), done=True, success=is_right)


def tasks(split: str) -> Iterator[Task]:
    """Every seventh number is held out."""
    for number in range(1000):
        if (number % 7 == 0) == (split == "eval"):
            yield Task(id=f"{number:03}", data={"digits": list(f"{number:03}")})


def demonstrations() -> Iterator[list[Message]]:
    """A player who names any of the three, or any digit."""
    generator = random.Random(0)
    known = list(tasks("train"))
    for _ in range(NUM_DEMONSTRATIONS):
        digits = generator.choice(known).data["digits"]
        answer = generator.choice(digits if generator.random() < 0.7 else "0123456789")
        yield [
            {"role": "user", "content": " ".join(digits)},
            {"role": "assistant", "content": answer},
        ]
