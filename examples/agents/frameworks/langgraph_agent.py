"""An agent of LangChain and LangGraph that uses a tool. It knows nothing of areal-sdk.

areal-sdk train examples/agents/frameworks/langgraph_agent.py --config examples/agents/frameworks/tiny.toml
areal-sdk eval --command "python langgraph_agent.py" --tasks games.jsonl   # a process an episode
"""

import asyncio
import json
import sys
from contextlib import suppress

from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from number_game import INSTRUCTIONS, QUESTION, NumberGame

MAX_STEPS = 12
"""Steps of the graph: a call of the model and one of the tool are two."""


async def play(secret, **where):
    """One game; `where` the model is, else what OPENAI_BASE_URL and OPENAI_API_KEY say."""
    game = NumberGame(secret)
    model = ChatOpenAI(model="policy", **where)
    player = create_agent(model, [tool(game.guess)], system_prompt=INSTRUCTIONS)
    with suppress(GraphRecursionError):  # a model that never stops calling: its game counts
        await player.ainvoke({"messages": [("user", QUESTION)]}, {"recursion_limit": MAX_STEPS})
    return float(game.won)


async def agent(task, context):
    """The agent that `areal-sdk train FILE` plays: many games at once in one process."""
    where = {"base_url": context.base_url, "api_key": context.api_key}
    return await play(task.data["secret"], http_async_client=context.http_client, **where)


if __name__ == "__main__":  # what `--command` runs
    print(json.dumps({"reward": asyncio.run(play(json.load(sys.stdin)["data"]["secret"]))}))
