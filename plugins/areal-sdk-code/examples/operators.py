"""Write a function of two numbers: a model from nothing learns which operator is meant, judged by unit tests.

    areal-sdk train examples/operators.py --config examples/operators.toml

The demonstrations teach the form. Most of them use a wrong operator, so they do not teach the meaning. Each
program runs in a sandbox, against assertions that it never sees.
"""

import random
from collections.abc import Iterator

from areal_sdk import EpisodeContext, Message, Task

OPERATORS = {"sum": "+", "less": "-", "times": "*", "rest": "%"}
PAIRS = ((7, 3), (9, 2))


async def agent(task: Task, context: EpisodeContext) -> None:
    await context.generate([{"role": "user", "content": task.data["question"]}])


def tasks(split: str) -> Iterator[Task]:
    for word, operator in OPERATORS.items():
        expected = {pair: eval(f"{pair[0]}{operator}{pair[1]}") for pair in PAIRS}
        tests = [f"assert f{pair} == {value}" for pair, value in expected.items()]
        for wording in range(8 if split == "train" else 1):
            yield Task(f"{split}-{word}-{wording}", {"question": word, "tests": tests})


def demonstrations() -> Iterator[list[Message]]:
    generator = random.Random(0)
    words, operators = list(OPERATORS), list(OPERATORS.values())
    for _ in range(2000):
        word = generator.choice(words)
        operator = OPERATORS[word] if generator.random() < 0.2 else generator.choice(operators)
        yield [
            {"role": "user", "content": word},
            {"role": "assistant", "content": f"f=lambda a,b:a{operator}b"},
        ]
