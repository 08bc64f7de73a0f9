"""Choose the right one of four tools for a question, and hand it the arguments in their order."""

import random
from collections.abc import Iterator, Sequence
from itertools import product

from areal_sdk import Environment, Message, StepResult, Task

ASKED = {
    "add": ("plus", "sum", "total"),
    "sub": ("minus", "less", "without"),
    "max": ("most", "top", "best"),
    "min": ("least", "low", "worst"),
}
NUM_DEMONSTRATIONS = 2000


class ToolChoice(Environment):
    """Success is "add 3 4" for "total 3 4"."""

    async def reset(self, task: Task) -> Sequence[Message]:
        self.call: str = task.data["call"]
        return [{"role": "user", "content": task.data["question"]}]

    async def step(self, message: Message) -> StepResult:
        is_right = " ".join((message.get("content") or "").split()) == self.call
        return StepResult(reward=float(is_right), done=True, success=is_right)


def tasks(split: str) -> Iterator[Task]:
    """Every seventh question is held out."""
    found = product(ASKED.items(), range(3), range(10), range(10))
    for number, ((tool, words), which, left, right) in enumerate(found):
        if (number % 7 == 0) == (split == "eval"):
            question = f"{words[which]} {left} {right}"
            yield Task(id=question, data={"question": question, "call": f"{tool} {left} {right}"})


def demonstrations() -> Iterator[list[Message]]:
    """A player who knows the tool four times in ten, and swaps the arguments one time in five."""
    generator = random.Random(0)
    known = list(tasks("train"))
    for _ in range(NUM_DEMONSTRATIONS):
        task = generator.choice(known)
        tool, *arguments = task.data["call"].split()
        if generator.random() > 0.4:
            tool = generator.choice(list(ASKED))
        if generator.random() < 0.2:
            arguments.reverse()
        yield [
            {"role": "user", "content": task.data["question"]},
            {"role": "assistant", "content": " ".join([tool, *arguments])},
        ]
