"""Arithmetic with another try after a wrong answer, worth less each time: a multi-turn agent.

    areal-sdk train examples/agents/math_with_retries.py --config examples/agents/math_with_retries.toml
    areal-sdk train examples/agents/math_with_retries.py --model DIRECTORY --tasks gsm8k.jsonl

Without a file of problems it adds small numbers, which `tiny`, a model from nothing, can learn. The
weak demonstrations teach what a number looks like, and reinforcement learning what the sums are. All
sums are trained on, so an evaluation measures what was learnt by heart, and a run says so.
"""

import random
import re
from collections.abc import Iterator
from typing import Any

from openai import AsyncOpenAI

from areal_sdk import Agent, EpisodeContext, Message, Outcome, Task

HIGHEST = 2
WRONG = "wrong"


class MathWithRetries(Agent):
    """The reward is `discount` to the power of the number of wrong answers before the right one."""

    def __init__(self, *, max_tries: int = 3, discount: float = 0.5) -> None:
        self.max_tries = max_tries
        self.discount = discount

    async def run(self, task: Task, context: EpisodeContext) -> Outcome:
        client = AsyncOpenAI(
            base_url=context.base_url, api_key=context.api_key, http_client=context.http_client
        )
        expected = last_number(task.data["answer"])
        if expected is None:
            raise ValueError(f"task {task.id!r}: no number in its answer {task.data['answer']!r}")
        messages: list[Any] = [{"role": "user", "content": task.data["question"]}]
        for num_wrong in range(self.max_tries):
            completion = await client.chat.completions.create(
                model=context.model, messages=messages
            )
            said = completion.choices[0].message.content or ""
            if last_number(said) == expected:
                return Outcome.scored(
                    self.discount**num_wrong,
                    success=True,
                    metrics={"right_at_once": float(num_wrong == 0)},
                )
            messages += [
                {"role": "assistant", "content": said},
                {"role": "user", "content": WRONG},
            ]
        return Outcome.scored(0.0, success=False, metrics={"right_at_once": 0.0})


def last_number(text: str) -> float | None:
    """The last number in a text; None if there is none. Only commas between thousands are part of one.

    >>> last_number("so 3 + 4 = 7."), last_number("#### 1,234"), last_number("none")
    (7.0, 1234.0, None)
    >>> last_number("1,2,3"), last_number("12,34")
    (3.0, 34.0)
    """
    thousands = r"(?<!\d,)[1-9]\d{0,2}(?:,\d{3})+(?!\d|,\d)"
    found = re.findall(rf"-?(?:{thousands}|\d+)(?:\.\d+)?", text)
    return float(found[-1].replace(",", "")) if found else None


def tasks(split: str) -> Iterator[Task]:
    for a in range(HIGHEST + 1):
        for b in range(HIGHEST + 1):
            yield Task(f"{split}-{a}+{b}", {"question": f"{a}+{b}", "answer": str(a + b)})


def demonstrations() -> Iterator[list[Message]]:
    """Answers of a pupil who guesses half of the time."""
    generator = random.Random(0)
    for _ in range(2000):
        a, b = generator.randint(0, HIGHEST), generator.randint(0, HIGHEST)
        messages: list[Message] = [{"role": "user", "content": f"{a}+{b}"}]
        for _ in range(3):
            knows = generator.random() < 1 / 2
            said = a + b if knows else generator.randint(0, 2 * HIGHEST)
            messages.append({"role": "assistant", "content": str(said)})
            if said == a + b:
                break
            messages.append({"role": "user", "content": WRONG})
        yield messages if messages[-1]["role"] == "assistant" else messages[:-1]
