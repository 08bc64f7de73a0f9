"""An agent whose tasks a tiny model learns from a few conversations: say the letter back, twice."""

from collections.abc import Iterator

from areal_sdk import Agent, EpisodeContext, Task


class Echo(Agent):
    """Reward 1 for the right answer."""

    async def run(self, task: Task, context: EpisodeContext) -> float:
        from openai import AsyncOpenAI

        client = AsyncOpenAI(
            base_url=context.base_url, api_key=context.api_key, http_client=context.http_client
        )
        asked = [{"role": "user", "content": task.data["letter"]}]
        completion = await client.chat.completions.create(
            model=context.model,
            messages=asked,  # type: ignore[arg-type]
            max_tokens=4,
        )
        return float(completion.choices[0].message.content == 2 * task.data["letter"])


def tasks(split: str) -> Iterator[Task]:
    for letter in "abcdefgh":
        yield Task(f"{split}-{letter}", {"letter": letter})
