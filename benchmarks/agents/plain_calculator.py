"""The calculator agent of the examples without its worked example: SmolLM2 never calls the tool by itself."""

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from areal_sdk import Agent, EpisodeContext, Task

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "agents"))
import calculator

SYSTEM = {"role": "system", "content": "Use the calculator."}


class PlainCalculator(Agent):
    """Reward 1 for the exact answer after a call."""

    async def run(self, task: Task, context: EpisodeContext) -> float:
        client = AsyncOpenAI(
            base_url=context.base_url, api_key=context.api_key, http_client=context.http_client
        )
        messages: list[Any] = [SYSTEM, {"role": "user", "content": task.data["question"]}]
        called = False
        for _ in range(3):
            completion = await client.chat.completions.create(
                model=context.model,
                messages=messages,
                tools=calculator.TOOLS,  # type: ignore[arg-type]
                max_tokens=16,
            )
            message = completion.choices[0].message
            if not message.tool_calls:
                return float(called and (message.content or "").strip() == task.data["answer"])
            called = True
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                assert call.type == "function"
                result = calculator.calculate(call.function.arguments)[1]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        return 0.0


def tasks(split: str) -> Iterator[Task]:
    return calculator.tasks(split)


def rows(count: int) -> Iterator[dict[str, Any]]:
    """Conversations to imitate, of training tasks."""
    for task in islice(tasks("train"), count):
        arguments = json.dumps({"expression": task.data["expression"]})
        function = {"name": "calculator", "arguments": arguments}
        call = {"id": "call", "type": "function", "function": function}
        answer = task.data["answer"]
        yield {
            "tools": calculator.TOOLS,
            "messages": [
                SYSTEM,
                {"role": "user", "content": task.data["question"]},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "call", "content": answer},
                {"role": "assistant", "content": answer},
            ],
        }
