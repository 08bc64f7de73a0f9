"""What can be evaluated on somebody else's endpoint, which gives text and no tokens."""

import pytest

import areal_sdk
from areal_sdk import Environment, EpisodeContext, Message, RolloutWorkflow, StepResult, Task
from areal_sdk.errors import ConfigError

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


@pytest.mark.parametrize("workers", [0, 1])
def test_an_agent_that_asks_for_tokens_is_told_what_to_use(workers: int) -> None:
    report = areal_sdk.evaluate(
        agent, tasks=[Task("one")], base_url=ENDPOINT, rollout={"workers": workers}
    )
    assert report.errors == {"agent": 1}
    assert "pointed at context.base_url" in report.first_errors["agent"]
