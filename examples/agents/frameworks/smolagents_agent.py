"""An agent of smolagents that uses a tool. It knows nothing of areal-sdk.

areal-sdk train examples/agents/frameworks/smolagents_agent.py --config examples/agents/frameworks/tiny.toml
areal-sdk eval --command "python smolagents_agent.py" --tasks games.jsonl   # a process an episode
"""

import json
import sys

from number_game import INSTRUCTIONS, QUESTION, NumberGame
from smolagents import LogLevel, OpenAIServerModel, ToolCallingAgent, tool
from smolagents.agents import EMPTY_PROMPT_TEMPLATES

MAX_STEPS = 5
PROMPTS = {**EMPTY_PROMPT_TEMPLATES, "system_prompt": INSTRUCTIONS}
"""Templates with a short system prompt. smolagents' own is 10,000 letters long, and the smallest
models read letters."""


def play(secret, **where):
    """One game; `where` the model is, else what OPENAI_BASE_URL and OPENAI_API_KEY say."""
    game = NumberGame(secret)
    guess = tool(game.guess)
    player = ToolCallingAgent(
        tools=[guess],
        model=OpenAIServerModel("policy", **where),
        prompt_templates=PROMPTS,
        max_steps=MAX_STEPS,
        verbosity_level=LogLevel.OFF,
    )
    player.run(QUESTION)
    return float(game.won)


def agent(task, context):
    """The agent that `areal-sdk train FILE` plays: games in threads, since this framework is not
    async."""
    return play(task.data["secret"], api_base=context.base_url, api_key=context.api_key)


if __name__ == "__main__":  # what `--command` runs
    print(json.dumps({"reward": play(json.load(sys.stdin)["data"]["secret"])}))
