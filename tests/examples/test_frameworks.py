"""Agents of other frameworks, which import nothing of areal-sdk, play and are one sample an episode.

The frameworks are large, so they are no requirement of the tests: a test of one that is not installed
is skipped, and says how to install it. All of them get along in one environment.
"""

import importlib.util
import re
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import pytest

from areal_sdk import Episode, GenerateRequest
from areal_sdk.models import resolve_model
from areal_sdk.process.user_code import load_user_module
from areal_sdk.rollout.trajectory import to_trajectories
from areal_sdk.testing import ScriptedEngine, run_agent, tool_call

CALL_BEGINS = "<tool_call>\n"
TINY = ScriptedEngine(model_dir=resolve_model("tiny"))
"""Reads the tokens of that model."""

FRAMEWORKS = Path(__file__).parents[2] / "examples" / "agents" / "frameworks"

PACKAGES = {
    "anthropic_agent": ("anthropic", "anthropic"),
    "langgraph_agent": ("langchain_openai", "langchain langchain-openai"),
    "openai_agents_agent": ("agents", "openai-agents"),
    "pydantic_ai_agent": ("pydantic_ai", "'pydantic-ai-slim[openai]'"),
    "smolagents_agent": ("smolagents", "'smolagents[openai]'"),
}
"""The module that an agent needs, and what installs it."""


def agent_of(name: str) -> Any:
    module, requirements = PACKAGES[name]
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{name} needs {module}: pip install {requirements}")
    return load_user_module(FRAMEWORKS / f"{name}.py").agent


async def play(name: str, *digits: object, ends: bool = True) -> Episode:
    """An episode in which the model guesses these digits, and then says that it is done."""
    last = tool_call("final_answer", answer="ok") if name == "smolagents_agent" else "ok"
    replies = [tool_call("guess", digit=digit) for digit in digits]
    said = chain(replies, repeat(last if ends else replies[-1]))

    def reply(request: GenerateRequest) -> str:
        text = next(said)
        # With `tool_choice: "required"` the gateway has begun the call.
        return text.removeprefix(CALL_BEGINS) if is_begun(request) else text

    return await run_agent(agent_of(name), {"secret": 2}, engine=reply)


def is_begun(request: GenerateRequest) -> bool:
    return TINY.decode(request.tokens[-20:]).endswith(CALL_BEGINS)


@pytest.mark.parametrize("name", PACKAGES)
async def test_an_episode_is_one_sample(name: str) -> None:
    episode = await play(name, 1, 2)
    assert episode.reward == 1.0, episode.outcome
    assert [turn.parent for turn in episode.turns] == [None, 0, 1]
    assert len(to_trajectories(episode)) == 1


@pytest.mark.parametrize("name", PACKAGES)
async def test_a_game_that_is_lost_is_no_error(name: str) -> None:
    assert (await play(name, 0, 1)).reward == 0.0


@pytest.mark.parametrize("name", PACKAGES)
async def test_nonsense_of_the_model_is_no_error(name: str) -> None:
    assert (await play(name, "x", [1], ends=False)).reward == 0.0


@pytest.mark.parametrize("name", PACKAGES)
def test_the_agents_know_nothing_of_the_sdk(name: str) -> None:
    text = (FRAMEWORKS / f"{name}.py").read_text()
    assert not re.search(r"^\s*(import|from)\s+areal_sdk", text, re.MULTILINE)
