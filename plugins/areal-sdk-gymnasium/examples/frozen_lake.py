"""FrozenLake by a model from nothing: demonstrations of a bad walker, then the lake's own reward.

    areal-sdk train examples/frozen_lake.py --config examples/frozen_lake.toml

The walker goes astray in four steps of ten and seldom arrives. The lake has one map, so the held-out
tasks are the training task, and a run says so: what is learnt is the way.
"""

import random
from collections.abc import Iterator

import gymnasium

from areal_sdk import Message, Task
from areal_sdk_gymnasium.datasets import tasks as gymnasium_tasks
from areal_sdk_gymnasium.environment import GymnasiumText

LAKE = "FrozenLake-v1"
NAMES = ("left", "down", "right", "up")
WAY = {0: 1, 4: 1, 8: 2, 9: 1, 13: 2, 14: 2, 1: 2, 2: 1, 6: 1, 10: 1, 3: 0}
"""A good action for each field that is no hole."""
MAX_STEPS = 10


class FrozenLake(GymnasiumText):
    def __init__(self) -> None:
        super().__init__(arguments={"is_slippery": False}, max_turns=MAX_STEPS, rules="")


def tasks(split: str) -> Iterator[Task]:
    return gymnasium_tasks(split, id=LAKE, count=64, eval_count=8)


def demonstrations() -> Iterator[list[Message]]:
    generator = random.Random(0)
    lake = gymnasium.make(LAKE, is_slippery=False)
    for _ in range(1000):
        field, _ = lake.reset()
        messages: list[Message] = [{"role": "user", "content": _asked(field)}]
        for _ in range(MAX_STEPS):
            strays = field not in WAY or generator.random() < 0.4
            action = generator.randrange(4) if strays else WAY[field]
            messages.append({"role": "assistant", "content": NAMES[action]})
            field, _, ended, _, _ = lake.step(action)
            if ended:
                break
            messages.append({"role": "user", "content": str(field)})
        yield messages if messages[-1]["role"] == "assistant" else messages[:-1]


def _asked(field: int) -> str:
    return f"{field}\nAnswer with one of: {', '.join(NAMES)}."
