"""An application in use: it answers, its user gives a thumb, and the model learns from that.

    areal-sdk serve --model smollm2 --learn                  # says its address, and a key
    python examples/online/thumbs.py http://127.0.0.1:8000/v1 KEY

Any OpenAI client will do; the only line that is new is the one that posts the thumb. The users here
are made up: they like an answer of at most twelve words.
"""

import asyncio
import itertools
import sys
from collections import deque
from contextlib import suppress

from openai import AsyncOpenAI

QUESTIONS = (
    "What is a glacier?",
    "Why is the sky blue?",
    "What does a carpenter do?",
    "Where do penguins live?",
)
USERS = 16


def thumb(answer: str) -> float:
    """The user's opinion of the answer: 1 up, 0 down."""
    return float(0 < len(answer.split()) <= 12)


async def ask(client: AsyncOpenAI, question: str) -> float:
    answer = await client.chat.completions.create(
        model="policy", messages=[{"role": "user", "content": question}], max_tokens=64
    )
    given = thumb(answer.choices[0].message.content or "")
    await client.post("/reward", body={"turn": answer.id, "reward": given}, cast_to=object)
    return given


async def use(url: str, key: str) -> None:
    """Ask until interrupted, and say how content the latest hundred users were."""
    latest: deque[float] = deque(maxlen=100)
    questions = itertools.cycle(QUESTIONS)

    async def user(client: AsyncOpenAI) -> None:
        while True:
            latest.append(await ask(client, next(questions)))

    async with AsyncOpenAI(base_url=url, api_key=key) as client, asyncio.TaskGroup() as users:
        for _ in range(USERS):
            users.create_task(user(client))
        while True:
            await asyncio.sleep(5)
            print(f"{sum(latest) / max(1, len(latest)):.0%} of the latest answers were liked")


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(use(*sys.argv[1:3]))
