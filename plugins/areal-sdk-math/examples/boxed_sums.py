r"""Sums of two digits, answered in `\boxed{}`: a model from nothing learns to add, judged by `boxed_answer`.

    areal-sdk train examples/boxed_sums.py --config examples/boxed_sums.toml

The demonstrations teach the form. Half of them are wrong by one, so they do not teach to add.
"""

import random
from collections.abc import Iterator

from areal_sdk import EpisodeContext, Message, Task

DIGITS = range(5)


async def agent(task: Task, context: EpisodeContext) -> None:
    await context.generate([{"role": "user", "content": task.data["question"]}])


def tasks(split: str) -> Iterator[Task]:
    for a in DIGITS:
        for b in DIGITS:
            yield Task(f"{split}-{a}-{b}", {"question": f"{a}+{b}", "answer": str(a + b)})


def demonstrations() -> Iterator[list[Message]]:
    generator = random.Random(0)
    for _ in range(2000):
        a, b = generator.choice(DIGITS), generator.choice(DIGITS)
        said = a + b + (generator.choice((-1, 1)) if generator.random() < 0.5 else 0)
        yield [
            {"role": "user", "content": f"{a}+{b}"},
            {"role": "assistant", "content": rf"\boxed{{{said}}}"},
        ]
