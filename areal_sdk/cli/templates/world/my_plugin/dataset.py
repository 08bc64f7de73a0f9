"""A dataset is a function of a split that yields tasks; its keyword parameters are its options."""

import random
from collections.abc import Iterator

from areal_sdk import Task


def tasks(split: str, *, count: int = 400, seed: int = 0) -> Iterator[Task]:
    """`count` sums to train on, a quarter as many to measure on. The splits never share a sum."""
    is_train = split == "train"
    generator = random.Random(f"{seed} {split}")
    for number in range(count if is_train else max(1, count // 4)):
        a = generator.randrange(10, 60) if is_train else generator.randrange(60, 100)
        b = generator.randrange(10, 100)
        data = {"question": f"What is {a}+{b}?", "answer": str(a + b)}
        yield Task(f"{split}-{number}", data)  # the id names the task across runs
