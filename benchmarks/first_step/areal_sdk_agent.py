"""Sums with a calculator tool: for areal-sdk."""

import json
import random

from openai import AsyncOpenAI

from areal_sdk import Agent, Task

PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}}
CALCULATOR = {
    "type": "function",
    "function": {
        "name": "calculator",
        "description": "Evaluate a sum, such as 1+2.",
        "parameters": PARAMETERS,
    },
}


def calculate(arguments):
    try:
        return str(sum(int(part) for part in json.loads(arguments)["expression"].split("+")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return "error"


class Sums(Agent):
    async def run(self, task, context):
        client = AsyncOpenAI(
            base_url=context.base_url, api_key=context.api_key, http_client=context.http_client
        )
        messages = [{"role": "user", "content": task.data["question"]}]
        for _ in range(3):
            completion = await client.chat.completions.create(
                model=context.model, messages=messages, tools=[CALCULATOR]
            )
            message = completion.choices[0].message
            if not message.tool_calls:
                break
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                result = calculate(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        said = message.content or ""
        return sum(letter in task.data["answer"] for letter in said) / (len(said) + 1)


def tasks(split):
    generator = random.Random(split)
    for number in range(100):
        a, b = generator.randrange(100), generator.randrange(100)
        yield Task(f"{split}-{number}", {"question": f"What is {a}+{b}?", "answer": str(a + b)})
