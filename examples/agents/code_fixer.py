"""An agent that mends a function until its tests pass, which run in a sandbox (areal-sdk-code).

    areal-sdk train examples/agents/code_fixer.py --config examples/agents/code_fixer.toml

The functions of the file are one line long, so that `tiny`, a model from nothing, can write them. A task
file brings others: `{"question": "def f(a):...", "tests": ["assert f(1) == 2"]}`. A program that fails, hangs
or does harm has failed its tests; a sandbox that cannot start is a fault of the machine, and no zero.
"""

import random
from collections.abc import Iterator
from typing import Any

from openai import AsyncOpenAI

from areal_sdk import Agent, EpisodeContext, Message, Outcome, Task
from areal_sdk_code.judge import Judge
from areal_sdk_sandbox import Limits

OPERATORS = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}
FENCE = "```"


class CodeFixer(Agent):
    """The reward is `discount` to the power of the number of programs that failed before."""

    def __init__(self, *, max_tries: int = 2, discount: float = 0.8, wall_s: float = 10.0) -> None:
        self.max_tries = max_tries
        self.discount = discount
        self.judge = Judge(Limits(wall_s=wall_s))

    async def run(self, task: Task, context: EpisodeContext) -> Outcome:
        client = AsyncOpenAI(
            base_url=context.base_url, api_key=context.api_key, http_client=context.http_client
        )
        messages: list[Any] = [{"role": "user", "content": task.data["question"]}]
        for num_failed in range(self.max_tries):
            completion = await client.chat.completions.create(
                model=context.model, messages=messages
            )
            said = completion.choices[0].message.content or ""
            verdict = await self.judge.judge(program_in(said), task.data["tests"])
            if verdict.passed:
                return Outcome.scored(self.discount**num_failed, success=True)
            messages += [
                {"role": "assistant", "content": said},
                {"role": "user", "content": "failed"},
            ]
        return Outcome.scored(0.0, success=False)


def program_in(text: str) -> str:
    """The last fenced block of an answer, or all of it.

    >>> program_in("So:\\n```python\\nx = 1\\n```\\nThat is it."), program_in("x = 2")
    ('x = 1\\n', 'x = 2')
    """
    parts = text.split(FENCE)
    if len(parts) < 3:
        return text
    return parts[-2].removeprefix("python").lstrip("\n")


def _function(operator: str) -> str:
    return f"def f(a,b):return a{operator}b"


def tasks(split: str) -> Iterator[Task]:
    """A wrong operator and one example. The tests use other numbers: the example's value fails them.

    Held-out examples are never trained.
    """
    generator = random.Random(0)
    numbers = [(a, b) for a in range(2, 10) for b in range(2, 10) if (a, b) != (2, 2)]
    generator.shuffle(numbers)
    for a, b in numbers[:10] if split == "eval" else numbers[10:]:
        for wrong in OPERATORS:
            for right, compute in OPERATORS.items():
                if right != wrong:
                    asked = f"{_function(wrong)}\nf({a},{b})={compute(a, b)}"
                    hidden = [
                        (generator.randint(10, 99), generator.randint(3, 9)) for _ in range(3)
                    ]
                    tests = [f"assert f({x},{y}) == {compute(x, y)}" for x, y in hidden]
                    data = {"question": asked, "tests": tests, "right": right, "wrong": wrong}
                    yield Task(f"{split}-{a}{right}{b}-{wrong}", data)


def demonstrations() -> Iterator[list[Message]]:
    """Demonstrations of a programmer who forgets half of the time which operators were wrong."""
    generator = random.Random(0)
    for task in tasks("train"):
        right, known = task.data["right"], {task.data["wrong"]}
        messages: list[Message] = [{"role": "user", "content": task.data["question"]}]
        for _ in range(2):
            remembers = generator.random() < 0.5
            tried = generator.choice([o for o in OPERATORS if not (remembers and o in known)])
            known.add(tried)
            messages.append({"role": "assistant", "content": _function(tried)})
            if tried == right:
                break
            messages.append({"role": "user", "content": "failed"})
        yield messages if messages[-1]["role"] == "assistant" else messages[:-1]
