"""An agent on Anthropic's own client, with a tool. It knows nothing of areal-sdk.

areal-sdk train examples/agents/frameworks/anthropic_agent.py --config examples/agents/frameworks/tiny.toml
areal-sdk eval --command "python anthropic_agent.py" --tasks games.jsonl   # a process an episode
"""

import asyncio
import json
import sys

from anthropic import AsyncAnthropic
from number_game import INSTRUCTIONS, QUESTION, NumberGame

MAX_TURNS = 5
GUESS = {
    "name": "guess",
    "description": "Guess the digit.",
    "input_schema": {
        "type": "object",
        "properties": {"digit": {"type": "integer"}},
        "required": ["digit"],
    },
}


async def play(secret, **where):
    """One game; `where` the model is, else what ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY say."""
    game = NumberGame(secret)
    messages = [{"role": "user", "content": QUESTION}]
    async with AsyncAnthropic(**where) as client:
        for _ in range(MAX_TURNS):
            message = await client.messages.create(
                model="policy",
                max_tokens=100,
                system=INSTRUCTIONS,
                messages=messages,
                tools=[GUESS],
            )
            results = [answer(block, game) for block in message.content if block.type == "tool_use"]
            if not results:
                break
            messages.append({"role": "assistant", "content": message.content})
            messages.append({"role": "user", "content": results})
    return float(game.won)


def answer(call, game):
    """The result of a call, whatever the model wrote into it."""
    digit = call.input.get("digit")
    said = (
        game.guess(digit) if call.name == "guess" and isinstance(digit, int) else "error: a digit"
    )
    return {"type": "tool_result", "tool_use_id": call.id, "content": said}


async def agent(task, context):
    """The agent that `areal-sdk train FILE` plays: many games at once in one process."""
    where = {"base_url": context.base_url.removesuffix("/v1"), "api_key": context.api_key}
    return await play(task.data["secret"], **where)


if __name__ == "__main__":  # what `--command` runs
    print(json.dumps({"reward": asyncio.run(play(json.load(sys.stdin)["data"]["secret"]))}))
