"""Short questions whose answers a model judges: the agent returns no reward, `[reward.judge]` gives it.

    areal-sdk serve --model smollm2                                         # the judge; prints its key
    JUDGE_API_KEY=KEY areal-sdk eval examples/capitals.py --config examples/judge.toml

First measure the judge itself: `areal-sdk judge examples/labelled.jsonl` asks it about 24 labelled answers.
"""

from collections.abc import Iterator

from openai import AsyncOpenAI

from areal_sdk import Agent, EpisodeContext, Task

TRAINED = ("France", "Norway", "Japan", "Kenya", "Peru", "Greece", "Austria", "Cuba")
HELD_OUT = ("Poland", "Sweden", "Iran", "Italy", "Spain", "Egypt", "Ireland", "Portugal")


class Capitals(Agent):
    async def run(self, task: Task, context: EpisodeContext) -> None:
        client = AsyncOpenAI(
            base_url=context.base_url, api_key=context.api_key, http_client=context.http_client
        )
        await client.chat.completions.create(
            model=context.model,
            messages=[{"role": "user", "content": task.data["question"]}],
            max_tokens=24,
        )


def tasks(split: str) -> Iterator[Task]:
    for country in TRAINED if split == "train" else HELD_OUT:
        yield Task(country, {"question": f"What is the capital of {country}?"})
