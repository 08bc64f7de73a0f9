"""Agents of AReaL's signature `run(self, data, **extra)` run as they are."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai
import pytest

from areal_sdk.types import ErrorKind
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


class TwoCompletions:
    """Returns rewards for what `rewarded` says, given the ids of its two completions."""

    def __init__(self, rewarded: Callable[[list[str]], dict[str, float]]) -> None:
        self._rewarded = rewarded

    async def run(self, data: dict[str, Any], **extra: Any) -> dict[str, float]:
        ids = []
        async with openai.AsyncOpenAI(**{k: extra[k] for k in ("base_url", "api_key")}) as client:
            for text in ("one", "two"):
                completion = await client.chat.completions.create(
                    model="default", messages=[{"role": "user", "content": text}]
                )
                ids.append(completion.id)
        return self._rewarded(ids)


@pytest.mark.parametrize(
    ("rewarded", "turn_rewards"),
    [
        (lambda ids: {ids[0]: 0.25, ids[1]: 1.0}, (0.25, 1.0)),
        (lambda ids: {ids[1]: 1.0, ids[0]: 0.25}, (0.25, 1.0)),
        (lambda ids: {ids[1]: 1.0}, (None, 1.0)),
    ],
    ids=["in the order of the turns", "in another order", "of one only"],
)
async def test_areals_rewards_belong_to_the_completions_they_name(
    rewarded: Callable[[list[str]], dict[str, float]],
    turn_rewards: tuple[float | None, ...],
    model_dir: Path,
) -> None:
    episode = await play(TwoCompletions(rewarded), "4", model_dir)
    assert episode.outcome.turn_rewards == turn_rewards
    assert episode.reward == sum(reward or 0.0 for reward in turn_rewards)


async def test_a_reward_for_a_completion_that_nobody_got_is_the_agents_error(
    model_dir: Path,
) -> None:
    agent = TwoCompletions(lambda ids: {ids[0]: 1.0, "chatcmpl-other": 1.0})
    episode = await play(agent, "4", model_dir)
    assert episode.outcome.error is ErrorKind.AGENT
    assert "'chatcmpl-other' is not the id of a completion of this episode" in (
        episode.outcome.message
    )


class TwoChoices:
    """Rewards one reply that has two choices, as if it were one."""

    async def run(self, data: dict[str, Any], **extra: Any) -> dict[str, float]:
        async with openai.AsyncOpenAI(**{k: extra[k] for k in ("base_url", "api_key")}) as client:
            completion = await client.chat.completions.create(
                model="default", messages=[{"role": "user", "content": "one"}], n=2
            )
        return {completion.id: 1.0}


async def test_a_reward_for_a_reply_of_several_choices_is_nobodys(model_dir: Path) -> None:
    episode = await play(TwoChoices(), "4", model_dir)
    assert episode.outcome.error is ErrorKind.AGENT
    assert "has 2 choices" in episode.outcome.message
