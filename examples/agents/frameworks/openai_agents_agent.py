"""An agent of the OpenAI Agents SDK that uses a tool. It knows nothing of areal-sdk.

areal-sdk train examples/agents/frameworks/openai_agents_agent.py --config examples/agents/frameworks/tiny.toml
areal-sdk eval --command "python openai_agents_agent.py" --tasks games.jsonl   # a process an episode
"""

import asyncio
import json
import sys
from contextlib import suppress

from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from agents.exceptions import MaxTurnsExceeded, ModelBehaviorError
from number_game import INSTRUCTIONS, QUESTION, NumberGame
from openai import AsyncOpenAI

MAX_TURNS = 5

set_tracing_disabled(True)  # traces go to OpenAI


async def play(secret, **where):
    """One game; `where` the model is, else what OPENAI_BASE_URL and OPENAI_API_KEY say."""
    game = NumberGame(secret)
    player = Agent(
        name="player",
        instructions=INSTRUCTIONS,
        tools=[function_tool(game.guess)],
        model=OpenAIResponsesModel(model="policy", openai_client=AsyncOpenAI(**where)),
    )
    with suppress(MaxTurnsExceeded, ModelBehaviorError):  # what the model did: its game counts
        await Runner.run(player, QUESTION, max_turns=MAX_TURNS)
    return float(game.won)


async def agent(task, context):
    """The agent that `areal-sdk train FILE` plays: many games at once in one process."""
    where = {"base_url": context.base_url, "api_key": context.api_key}
    return await play(task.data["secret"], http_client=context.http_client, **where)


if __name__ == "__main__":  # what `--command` runs
    print(json.dumps({"reward": asyncio.run(play(json.load(sys.stdin)["data"]["secret"]))}))
