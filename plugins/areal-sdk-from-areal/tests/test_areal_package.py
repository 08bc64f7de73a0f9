"""AReaL's own client and workflow, from its package, on our engine.

The package brings 200 others and is no part of the checks; `test_workflows.py` has what it asks of an engine in
plain objects. By hand: `pip install areal` into the environment, then this file.
"""

from pathlib import Path
from typing import Any

import pytest

from areal_sdk.backends.remote import resolve_model
from areal_sdk.testing import run_agent

pytest.importorskip(
    "areal.experimental.openai",
    reason="AReaL's package is not installed: pip install areal",
    exc_type=ImportError,
)
transformers = pytest.importorskip("transformers")

from areal.api.cli_args import GenerationHyperparameters  # noqa: E402
from areal.experimental.openai import ArealOpenAI  # noqa: E402
from areal.workflow.multi_turn import MultiTurnWorkflow  # noqa: E402


@pytest.fixture
def model_dir() -> Path:
    """The tiny model, whose tokens are the bytes of a text."""
    return resolve_model("tiny")


@pytest.fixture
def tokenizer(model_dir: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(model_dir)


async def run(agent: Any, script: Any, model_dir: Path) -> Any:
    task = {"question": "2+2?", "answer": "4"}
    return await run_agent(agent, task, engine=script, model_dir=model_dir)


class Twice:
    """Two calls of AReaL's client in one conversation; the last is rewarded, the first gets a half."""

    def __init__(self, tokenizer: Any, style: str) -> None:
        self._tokenizer, self._style = tokenizer, style

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
        template = "concat" if self._style == "concat" else "hf"
        client = ArealOpenAI(engine=engine, tokenizer=self._tokenizer, chat_template_type=template)
        messages: list[Any] = [{"role": "user", "content": data["question"]}]
        for _ in range(2):
            reply = await client.chat.completions.create(messages=messages, max_completion_tokens=8)
            messages.append(reply.choices[0].message.model_dump(exclude_none=True))
            messages.append({"role": "user", "content": "Again."})
        client.set_last_reward(1.0)
        client.apply_reward_discount(turn_discount=0.5)
        return client.export_interactions(style=self._style)


async def test_areals_client_rewards_each_completion(model_dir: Path, tokenizer: Any) -> None:
    episode = await run(Twice(tokenizer, "individual"), ["4", "five"], model_dir)
    assert episode.outcome.message == ""
    assert episode.outcome.turn_rewards == (-0.5, 1.0)  # returns 0.5 and 1.0
    assert [turn.excluded for turn in episode.turns] == [None, None]


async def test_areals_client_trains_a_whole_conversation(model_dir: Path, tokenizer: Any) -> None:
    episode = await run(Twice(tokenizer, "concat"), ["4", "five"], model_dir)
    assert episode.reward == 1.0
    assert episode.outcome.turn_rewards == ()
    assert [turn.parent for turn in episode.turns] == [None, 0]


def is_right(prompt: str, completion: str, *_: Any, **data: Any) -> float:
    return float(data["answer"] in completion)


async def test_areals_multi_turn_workflow_runs_as_it_is(model_dir: Path, tokenizer: Any) -> None:
    workflow = MultiTurnWorkflow(
        is_right,
        GenerationHyperparameters(max_new_tokens=8),
        tokenizer,
        max_turns=3,
        turn_discount=0.9,
    )

    class Playing:
        async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
            messages = [{"role": "user", "content": data["question"]}]
            return await workflow.arun_episode(engine, {**data, "messages": messages})

    episode = await run(Playing(), ["5", "4"], model_dir)
    assert episode.outcome.message == ""
    assert episode.reward == pytest.approx(0.9)
    assert [turn.excluded for turn in episode.turns] == [None, None]
