"""A prompt that the settings leave no room for: the run names the setting."""

from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

import areal_sdk
from areal_sdk import EpisodeContext, Task
from areal_sdk.telemetry import RunDir
from tests.loop.runs import PLUGIN

CATCHING = "catch the refusal in the agent, score with a reward function"


async def agent(task: Task, context: EpisodeContext) -> float:
    client = AsyncOpenAI(
        base_url=context.base_url, api_key=context.api_key, http_client=context.http_client
    )
    question = {"role": "user", "content": task.data["question"]}
    for _ in range(2):
        await client.chat.completions.create(model=context.model, messages=[question])  # type: ignore[list-item]
    return 1.0


@pytest.mark.parametrize(
    ("settings", "length", "told"),
    [
        ({"engine": {"max_context": 64}}, 9000, "raise engine.max_context = 64 (the model takes"),
        ({}, 9000, CATCHING),
        ({"engine": {"max_context": 64}, "rollout": {"max_turns": 1}}, 1, CATCHING),
    ],
    ids=["a short context", "the model's own context", "another limit"],
)
def test_an_episode_that_was_too_long_names_the_setting_that_made_it_so(
    tmp_path: Path, settings: dict[str, Any], length: int, told: str
) -> None:
    values = {
        **settings,
        "plugins": [PLUGIN],
        "engine": {"name": "scripted", **settings.get("engine", {})},
        "run": {"dir": str(tmp_path), "name": "kept"},
    }
    tasks = [Task("long", {"question": "a" * length})]
    areal_sdk.evaluate(agent, model="tiny", tasks=tasks, record=True, quiet=True, **values)
    record = RunDir.open(tmp_path / "kept").find_episode("eval.long.0")
    assert f"): {told}" in record.episode.outcome.message
