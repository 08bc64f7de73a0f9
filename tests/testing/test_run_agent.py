"""`run_agent` plays through the real gateway; what it returns is what a run would record."""

from typing import Any

import pytest
from openai import AsyncOpenAI

from areal_sdk import Agent, Environment, EpisodeContext, StepResult, Task
from areal_sdk.testing import Fault, Reply, ScriptedEngine, run_agent, tool_call
from areal_sdk.types import Episode, ErrorKind, Message, OutcomeKind

ADD: Any = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}


class Adder(Agent):
    async def run(self, task: Task, context: EpisodeContext) -> float:
        client = AsyncOpenAI(
            base_url=context.base_url, api_key=context.api_key, http_client=context.http_client
        )
        messages: list[Any] = [{"role": "user", "content": str(task.data["question"])}]
        answer = await client.chat.completions.create(
            model=context.model, messages=messages, tools=[ADD]
        )
        (call,) = answer.choices[0].message.tool_calls or []
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        messages.append({"role": "tool", "tool_call_id": call.id, "content": "5"})
        answer = await client.chat.completions.create(
            model=context.model, messages=messages, tools=[ADD]
        )
        return float(answer.choices[0].message.content == "5")


async def quiet(task: Task, context: EpisodeContext) -> None:
    await context.generate([{"role": "user", "content": "say something"}])


class Echo(Environment):
    async def reset(self, task: Task) -> list[Message]:
        return [{"role": "user", "content": "say yes"}]

    async def step(self, message: Message) -> StepResult:
        said_yes = message["content"] == "yes"
        return StepResult(
            [{"role": "user", "content": "no"}], reward=float(said_yes), done=said_yes
        )


async def test_an_agent_plays_two_turns_over_http() -> None:
    episode = await run_agent(Adder, {"question": "2+3?"}, engine=[tool_call("add", a=2, b=3), "5"])
    assert episode.reward == 1.0
    assert [turn.finish_reason.value for turn in episode.turns] == ["stop", "stop"]
    first, second = episode.turns
    assert second.parent == 0
    kept = (*first.prompt_tokens, *first.output_tokens)
    assert second.prompt_tokens[: len(kept)] == kept


async def test_an_environment_is_played_by_its_class() -> None:
    episode = await run_agent(Echo, {}, engine=["no", "yes"])
    assert episode.outcome.turn_rewards == (0.0, 1.0)


async def test_a_reward_scores_what_the_agent_did_not() -> None:
    def shortness(episode: Episode) -> float:
        return 1 / len(episode.final_text)

    episode = await run_agent(quiet, {}, engine="four", reward=shortness)
    assert episode.reward == 0.25
    unscored = await run_agent(quiet, {}, engine="four")
    assert unscored.outcome.kind is OutcomeKind.ABSTAIN


async def test_an_engine_fault_is_infrastructure_even_if_the_agent_hides_it() -> None:
    async def hides(task: Task, context: EpisodeContext) -> float:
        try:
            await quiet(task, context)
        except Exception:  # noqa: BLE001 - what careless agents do
            return 1.0
        return 0.5

    episode = await run_agent(hides, {}, engine=Reply("x", fault=Fault.RAISE))
    assert episode.outcome.error is ErrorKind.INFRASTRUCTURE


async def test_turn_limits_truncate() -> None:
    episode = await run_agent(Echo, {}, engine="no", max_turns=3)
    assert episode.truncated
    assert len(episode.turns) == 3


async def test_an_engine_of_ones_own_is_closed_afterwards() -> None:
    engine = ScriptedEngine("hi")
    await run_agent(quiet, {}, engine=engine)
    assert engine.is_closed
    assert engine.num_requests == 1


async def test_a_reward_that_raises_reaches_the_test() -> None:
    def broken(episode: Episode) -> float:
        raise KeyError("answer")

    with pytest.raises(KeyError):
        await run_agent(quiet, {}, engine="hi", reward=broken)
