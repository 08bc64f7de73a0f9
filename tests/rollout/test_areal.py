"""Agents of AReaL's own signatures run as they are."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai

from areal_sdk.types import OutcomeKind
from tests.rollout.playing import play


async def test_an_areal_agent_runs_as_it_is(model_dir: Path) -> None:
    class ArealAgent:
        async def run(self, data: dict[str, Any], **extra: Any) -> float:
            areal_client = openai.AsyncOpenAI(
                base_url=extra["base_url"],
                api_key=extra["api_key"],
                http_client=extra["http_client"],
                max_retries=0,
            )
            completion = await areal_client.chat.completions.create(
                model="default", messages=[{"role": "user", "content": data["question"]}]
            )
            return float(completion.choices[0].message.content == data["answer"])

    assert (await play(ArealAgent(), "4", model_dir)).reward == 1.0


async def test_an_areal_workflow_runs_as_it_is(model_dir: Path) -> None:
    class ArealWorkflow:
        async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
            request = SimpleNamespace(
                input_ids=[1, 2, 3], gconfig=SimpleNamespace(max_new_tokens=8), rid="r"
            )
            response = await engine.agenerate(request)
            assert response.input_tokens == [1, 2, 3]
            assert response.output_len == len(response.output_logprobs) == 2
            assert response.stop_reason == "stop"
            return {"rewards": [0.75], "input_ids": [response.input_tokens]}

    episode = await play(ArealWorkflow(), "4", model_dir)
    assert episode.reward == 0.75
    assert episode.turns[0].prompt_tokens == (1, 2, 3)


async def test_an_areal_workflow_rejects_an_episode_with_none(model_dir: Path) -> None:
    class Rejects:
        async def arun_episode(self, engine: Any, data: dict[str, Any]) -> None:
            return None

    assert (await play(Rejects(), "4", model_dir)).outcome.kind is OutcomeKind.ABSTAIN


async def test_areals_rewards_by_completion_are_rewards_by_turn(model_dir: Path) -> None:
    class TwoTurns:
        async def run(self, data: dict[str, Any], **extra: Any) -> dict[str, float]:
            areal_client = openai.AsyncOpenAI(**{k: extra[k] for k in ("base_url", "api_key")})
            rewards = {}
            for index, text in enumerate(("one", "two")):
                completion = await areal_client.chat.completions.create(
                    model="default", messages=[{"role": "user", "content": text}]
                )
                rewards[completion.id] = float(index)
            await areal_client.close()
            return rewards

    assert (await play(TwoTurns(), "4", model_dir)).outcome.turn_rewards == (0.0, 1.0)
