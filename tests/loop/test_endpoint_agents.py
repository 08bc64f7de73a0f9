"""Agents can be evaluated on somebody else's endpoint, which gives text and no tokens."""

import asyncio
import socket
import urllib.request
from typing import Any

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


async def agent(task: Task, context: EpisodeContext) -> float:
    await context.generate([{"role": "user", "content": "?"}])
    return float(not context.turns)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("program", [Workflow, World])
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


def test_whose_temperature_counts_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    areal_sdk.evaluate(agent, tasks=[Task("one")], base_url=ENDPOINT)
    told = capfd.readouterr().err
    assert "temperature: that of the agent's requests, else the endpoint's default" in told
    areal_sdk.evaluate(agent, tasks=[Task("one")], base_url=ENDPOINT, eval={"temperature": 0})
    told = capfd.readouterr().err
    assert "eval.temperature = 0 changes nothing: with --base-url" in told


async def calls(task: Task, context: EpisodeContext) -> float:
    def ask() -> bytes:
        answer: bytes = urllib.request.urlopen(f"{context.base_url}/models", timeout=60).read()
        return answer

    return float(len(await asyncio.to_thread(ask)))


@pytest.mark.parametrize("workers", [0, 1])
def test_an_endpoint_that_is_down_is_no_error_of_the_agent(workers: int) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # and nobody listens
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        asked: dict[str, Any] = {"base_url": url, "rollout": {"workers": workers}}
        report = areal_sdk.evaluate(calls, tasks=[Task("one")], **asked)
        assert report.errors == {"infrastructure": 1}
        assert f"nobody answers at {url}: " in report.first_errors["infrastructure"]


async def looks_up(task: Task, context: EpisodeContext) -> float:
    raise ConnectionError("its own database took no connection")


def test_what_the_agent_cannot_connect_to_elsewhere_is_its_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        report = areal_sdk.evaluate(looks_up, tasks=[Task("one")], base_url=url)
    assert report.errors == {"agent": 1}


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
