"""An agent written for AReaL: `run(self, data, **extra)`. It runs here as it is.

areal-sdk eval examples/agents/areal_style.py --model smollm2
"""

import random
from collections.abc import Iterator
from typing import Any

from openai import AsyncOpenAI

from areal_sdk import Task


class Arithmetic:
    async def run(self, data: dict[str, Any], **extra: Any) -> float:
        client = AsyncOpenAI(
            base_url=extra["base_url"],
            api_key=extra["api_key"],
            http_client=extra.get("http_client"),
            max_retries=0,
        )
        completion = await client.chat.completions.create(
            model="default", messages=data["messages"], max_tokens=16
        )
        words = (completion.choices[0].message.content or "").strip(" .\n").split()
        return float(bool(words) and words[-1] == data["answer"])


def tasks(split: str) -> Iterator[Task]:
    """Sums of digits; the splits share none."""
    pairs = [(a, b) for a in range(10) for b in range(10)]
    random.Random(0).shuffle(pairs)
    for a, b in pairs[:20] if split == "eval" else pairs[20:]:
        question = f"What is {a}+{b}? Answer with the number only."
        yield Task(
            f"{a}+{b}",
            {"messages": [{"role": "user", "content": question}], "answer": str(a + b)},
        )
