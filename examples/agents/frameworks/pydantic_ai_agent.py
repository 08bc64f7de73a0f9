"""An agent of Pydantic AI that uses a tool. It knows nothing of areal-sdk.

areal-sdk train examples/agents/frameworks/pydantic_ai_agent.py --config examples/agents/frameworks/tiny.toml
areal-sdk eval --command "python pydantic_ai_agent.py" --tasks games.jsonl   # a process an episode
"""

import asyncio
import json
import sys
from contextlib import suppress

from number_game import INSTRUCTIONS, QUESTION, NumberGame
from pydantic_ai import Agent, UnexpectedModelBehavior, UsageLimitExceeded, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

LIMITS = UsageLimits(request_limit=5)


async def play(secret, **where):
    """One game; `where` the model is, else what OPENAI_BASE_URL and OPENAI_API_KEY say."""
    game = NumberGame(secret)
    model = OpenAIChatModel("policy", provider=OpenAIProvider(**where))
    player = Agent(model, system_prompt=INSTRUCTIONS, tools=[game.guess])
    with suppress(
        UnexpectedModelBehavior, UsageLimitExceeded
    ):  # what the model did: its game counts
        await player.run(QUESTION, usage_limits=LIMITS)
    return float(game.won)


async def agent(task, context):
    """The agent that `areal-sdk train FILE` plays: many games at once in one process."""
    where = {"base_url": context.base_url, "api_key": context.api_key}
    return await play(task.data["secret"], http_client=context.http_client, **where)


if __name__ == "__main__":  # what `--command` runs
    print(json.dumps({"reward": asyncio.run(play(json.load(sys.stdin)["data"]["secret"]))}))
