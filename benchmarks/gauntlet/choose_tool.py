"""Choose the one of three tools that a question needs. For smollm2."""

import json
import random
from collections.abc import Iterator, Sequence

from areal_sdk import Environment, Message, StepResult, Task

ASKED = {
    "get_weather": ("What is the weather in {}?", "Will it rain in {}?"),
    "get_time": ("What time is it in {}?", "Is it late in {}?"),
    "get_population": ("How many people live in {}?", "How big is {}?"),
}
TRAINED = ("Oslo", "Rome", "Lima", "Cairo", "Paris", "Kyiv", "Quito", "Seoul", "Delhi")
HELD_OUT = ("Tunis", "Accra", "Riga")


def tool(name: str) -> dict[str, object]:
    city = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    return {"type": "function", "function": {"name": name, "parameters": city}}


class ChooseTool(Environment):
    """Half of the reward is for the tool, half for the city."""

    tools = tuple(tool(name) for name in ASKED)

    async def reset(self, task: Task) -> Sequence[Message]:
        self.expected: tuple[str, str] = (task.data["tool"], task.data["city"])
        return [
            {"role": "system", "content": "Answer every question with a call of one tool."},
            {"role": "user", "content": task.data["question"]},
        ]

    async def step(self, message: Message) -> StepResult:
        calls = message.get("tool_calls") or []
        if len(calls) != 1:
            return StepResult(reward=0.0, done=True, success=False)
        found = calls[0]["function"]["name"], city_of(calls[0]["function"]["arguments"])
        num_right = sum(a == b for a, b in zip(found, self.expected, strict=True))
        return StepResult(reward=num_right / 2, done=True, success=num_right == 2)


def city_of(arguments: str) -> object:
    try:
        found = json.loads(arguments)
    except ValueError:
        return None
    return found.get("city") if isinstance(found, dict) else None


def tasks(split: str) -> Iterator[Task]:
    generator = random.Random(split)
    cities = TRAINED if split == "train" else HELD_OUT
    for number in range(500 if split == "train" else 100):
        name, city = generator.choice(list(ASKED)), generator.choice(cities)
        question = generator.choice(ASKED[name]).format(city)
        data = {"tool": name, "city": city, "question": question}
        yield Task(id=f"{split}-{number}", data=data)
