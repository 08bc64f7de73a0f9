"""An agent that must call a calculator and then answer, with the plain `openai` client.

    areal-sdk train examples/agents/calculator.py --model smollm2

The model sees one worked example; at first it mostly ignores the tool and guesses.
"""

import ast
import json
import operator
import random
from collections.abc import Iterator

from openai import AsyncOpenAI

from areal_sdk import Agent, EpisodeContext, Outcome, Task

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "description": "Evaluate an arithmetic expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]


def _call(expression: str) -> dict[str, object]:
    function = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
    return {"id": "example", "type": "function", "function": function}


EXAMPLE = [
    {"role": "system", "content": "Use the calculator."},
    {"role": "user", "content": "What is 11+22?"},
    {"role": "assistant", "content": None, "tool_calls": [_call("11+22")]},
    {"role": "tool", "tool_call_id": "example", "content": "33"},
    {"role": "assistant", "content": "33"},
]


class Calculator(Agent):
    """Half of the reward is for the exact call, half for the exact answer after its result."""

    async def run(self, task: Task, context: EpisodeContext) -> Outcome:
        client = AsyncOpenAI(
            base_url=context.base_url, api_key=context.api_key, http_client=context.http_client
        )
        messages = [*EXAMPLE, {"role": "user", "content": task.data["question"]}]
        called = called_exactly = answered = False
        for _ in range(3):
            completion = await client.chat.completions.create(
                model=context.model, messages=messages, tools=TOOLS, max_tokens=16
            )
            message = completion.choices[0].message
            if not message.tool_calls:
                answered = (message.content or "").strip() == task.data["answer"]
                break
            called = True
            messages.append(message.model_dump(exclude_none=True))
            for call in message.tool_calls:
                expression, result = calculate(call.function.arguments)
                called_exactly = called_exactly or expression == task.data["expression"]
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        success = called and answered
        return Outcome.scored(0.5 * called_exactly + 0.5 * success, success=success)


OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def calculate(arguments: str) -> tuple[str, str]:
    """The expression in the model's arguments, and its value or what is wrong with it.

    >>> calculate('{"expression": "2 + 3 * 4"}')
    ('2+3*4', '14')
    """
    try:
        expression = str(json.loads(arguments)["expression"])[:100].replace(" ", "")
    except (ValueError, KeyError, TypeError):
        return "", "error: no expression"
    try:
        return expression, str(_evaluate(ast.parse(expression, mode="eval").body))
    except (ValueError, SyntaxError):
        return expression, "error: not an arithmetic expression"


def _evaluate(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_evaluate(left), _evaluate(right))
    raise ValueError(ast.dump(node))


OPERANDS = (range(100, 1000), range(1000, 10_000))
HELD_OUT = frozenset(n for r in OPERANDS for n in random.Random(0).sample(r, len(r) // 10))
"""Training tasks never contain these numbers; the other splits contain no others."""


def tasks(split: str) -> Iterator[Task]:
    """`train`; `eval`, on operands never trained on; `transfer`, with an operation never trained."""
    rng = random.Random(split)
    choices = [[n for n in r if (n in HELD_OUT) == (split != "train")] for r in OPERANDS]
    for index in range(2000 if split == "train" else 100):
        a, b = sorted((rng.choice(rng.choice(choices)) for _ in "ab"), reverse=True)
        expression = f"{a}{'*' if split == 'transfer' else '+-'[index % 2]}{b}"
        answer = str(_evaluate(ast.parse(expression, mode="eval").body))
        question = f"What is {expression}?"
        yield Task(
            f"{split}-{index}", {"question": question, "expression": expression, "answer": answer}
        )
