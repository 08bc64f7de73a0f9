"""A format: say in JSON who is how old. For smollm2."""

import json
import random
from collections.abc import Iterator, Sequence

from areal_sdk import Environment, Message, StepResult, Task

TRAINED = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Jane", "Karl", "Lea")
HELD_OUT = ("Max", "Nora", "Otto", "Pia")


class JsonFormat(Environment):
    """A third of the reward is for an object of two fields, a third for each right value. Success is all."""

    async def reset(self, task: Task) -> Sequence[Message]:
        self.expected = {"name": task.data["name"], "age": task.data["age"]}
        text = (
            f"{task.data['name']} is {task.data['age']} years old. "
            "Write this as a JSON object with the fields name and age, and nothing else."
        )
        return [{"role": "user", "content": text}]

    async def step(self, message: Message) -> StepResult:
        found = parsed(message.get("content") or "")
        if found is None or found.keys() != self.expected.keys():
            return StepResult(reward=0.0, done=True, success=False)
        num_right = sum(found[key] == value for key, value in self.expected.items())
        return StepResult(reward=(1 + num_right) / 3, done=True, success=num_right == 2)


def parsed(text: str) -> dict[str, object] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def tasks(split: str) -> Iterator[Task]:
    generator = random.Random(split)
    names = TRAINED if split == "train" else HELD_OUT
    for number in range(500 if split == "train" else 100):
        data = {"name": generator.choice(names), "age": generator.randrange(10, 100)}
        yield Task(id=f"{split}-{number}", data=data)
