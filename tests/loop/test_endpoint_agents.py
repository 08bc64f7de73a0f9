"""What can be evaluated on somebody else's endpoint, which gives text and no tokens."""

import asyncio

import pytest

import areal_sdk
from areal_sdk import Environment, EpisodeContext, Message, RolloutWorkflow, StepResult, Task
from areal_sdk.config import parse_config
from areal_sdk.errors import ConfigError
from areal_sdk.rollout.agents.endpoint import EndpointRunner
from areal_sdk.rollout.evaluation import evaluate_tasks

ENDPOINT = "http://127.0.0.1:9/v1"


class Workflow(RolloutWorkflow):
    async def run_episode(self, task: Task, context: EpisodeContext) -> float:
        turn = await context.generate([{"role": "user", "content": "?"}])
        return float(bool(turn.output_tokens))


class World(Environment):
    async def reset(self, task: Task) -> list[Message]:
        return [{"role": "user", "content": "?"}]

    async def step(self, message: Message) -> StepResult:
        return StepResult(reward=1.0, done=True)


class Tokens:
    async def arun_episode(self, engine: object, data: object) -> float:
        return 1.0


async def agent(task: Task, context: EpisodeContext) -> float:
    await context.generate([{"role": "user", "content": "?"}])
    return float(not context.turns)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("program", [Workflow, World, Tokens])
def test_what_is_played_token_by_token_is_refused_with_the_cure(
    program: type, workers: int
) -> None:
    with pytest.raises(ConfigError, match=f"{program.__name__} is played token by token.*--model"):
        areal_sdk.evaluate(
            program, tasks=[Task("one")], base_url=ENDPOINT, rollout={"workers": workers}
        )


def test_rollout_nodes_that_are_not_started_are_told_of(capfd: pytest.CaptureFixture[str]) -> None:
    report = areal_sdk.evaluate(agent, tasks=[Task("one")], base_url=ENDPOINT, rollout={"nodes": 2})
    assert report.num_episodes == 1
    assert "rollout.nodes = 2 changes nothing: with --base-url" in capfd.readouterr().err


@pytest.mark.parametrize("workers", [0, 1])
def test_an_agent_that_asks_for_tokens_is_told_what_to_use(workers: int) -> None:
    report = areal_sdk.evaluate(
        agent, tasks=[Task("one")], base_url=ENDPOINT, rollout={"workers": workers}
    )
    assert report.errors == {"agent": 1}
    assert "pointed at context.base_url" in report.first_errors["agent"]


async def test_agents_begin_one_at_a_time_and_leave_the_event_loop_a_round_in_between() -> None:
    rounds, begun = 0, []

    async def count_rounds() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    async def begins(task: Task, context: EpisodeContext) -> float:
        begun.append(rounds)
        return 1.0

    runner = EndpointRunner(
        parse_config({}), begins, split="eval", base_url=ENDPOINT, api_key="none"
    )
    async with runner:
        counter = asyncio.create_task(count_rounds())
        await evaluate_tasks(runner, [Task(str(index)) for index in range(8)])
        counter.cancel()
    assert len(set(begun)) == 8
