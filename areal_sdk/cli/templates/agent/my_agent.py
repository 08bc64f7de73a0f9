"""MyAgent: adds two numbers with a calculator. `areal-sdk train my_agent.py` trains it."""

import random
from collections.abc import Iterator
from typing import Any

from openai import AsyncOpenAI

from areal_sdk import Agent, EpisodeContext, Task

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Evaluate a sum, such as 11+22.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]
MAX_TURNS = 4


class MyAgent(Agent):
    """Plain OpenAI client code. The reward is what `run` returns."""

    async def run(self, task: Task, context: EpisodeContext) -> float:
        client = AsyncOpenAI(
            base_url=context.base_url, api_key=context.api_key, http_client=context.http_client
        )
        messages: list[Any] = [{"role": "user", "content": task.data["question"]}]
        for _ in range(MAX_TURNS):
            completion = await client.chat.completions.create(
                model=context.model, messages=messages, tools=TOOLS
            )
            message = completion.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return float((message.content or "").strip() == task.data["answer"])
            for call in message.tool_calls:
                result = calculate(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return 0.0


def calculate(arguments: str) -> str:
    """The sum, or what was wrong: a malformed call is the model's mistake, not an exception."""
    numbers = "".join(c if c.isdigit() else " " for c in arguments).split()
    return str(sum(map(int, numbers))) if numbers else "error: write it as 11+22"


def tasks(split: str) -> Iterator[Task]:
    """Train and eval never share a task. `id` names a task across runs."""
    low, high, count = (10, 60, 400) if split == "train" else (60, 100, 100)
    generator = random.Random(split)
    for number in range(count):
        a, b = generator.randrange(low, high), generator.randrange(low, high)
        yield Task(f"{split}-{number}", {"question": f"What is {a}+{b}?", "answer": str(a + b)})
