"""Episodes that an environment plays: its rewards, its failures, its end."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.environment import Environment, StepResult
from areal_sdk.gateway.sessions.session import SessionLimits
from areal_sdk.rollout.agents.environment import EnvironmentAgent
from areal_sdk.types import ErrorKind, Message, Outcome, Task, Tool
from tests.rollout.countdown import Countdown
from tests.rollout.playing import play


async def test_the_environment_agent_plays_until_done_and_closes(model_dir: Path) -> None:
    closed = Countdown.closed
    episode = await play(EnvironmentAgent(Countdown), "down", model_dir)
    assert [m["content"] for m in episode.messages] == [
        *("count", "down", "1", "down", "2", "down")
    ]
    assert episode.outcome == Outcome.scored(1.0, success=True)
    assert [turn.parent for turn in episode.turns] == [None, 0, 1]
    assert Countdown.closed == closed + 1


async def test_rewards_of_single_steps_stay_with_their_turns(model_dir: Path) -> None:
    agent = EnvironmentAgent(lambda: Countdown((0.5, None, -1.0)))
    episode = await play(agent, "down", model_dir)
    assert episode.outcome.turn_rewards == (0.5, None, -1.0)
    assert episode.reward == -0.5


async def test_an_environment_cut_by_a_limit_keeps_what_was_earned(model_dir: Path) -> None:
    agent = EnvironmentAgent(lambda: Countdown((0.5, 0.5, 1.0)))
    episode = await play(agent, "down", model_dir, limits=SessionLimits(max_turns=2))
    assert episode.truncated
    assert episode.outcome.turn_rewards == (0.5, 0.5)
    assert episode.outcome.success is False


async def test_a_failing_environment_is_its_own_error_and_is_closed(model_dir: Path) -> None:
    class Broken(Countdown):
        async def step(self, message: Message) -> StepResult:
            raise RuntimeError("the world ended")

    closed = Countdown.closed
    episode = await play(EnvironmentAgent(Broken), "down", model_dir)
    assert episode.outcome.error is ErrorKind.ENVIRONMENT
    place = f"(test_environments.py:{Broken.step.__code__.co_firstlineno + 1})"
    assert episode.outcome.message == (
        f"environment Broken.step: RuntimeError: the world ended {place}"
    )
    assert Countdown.closed == closed + 1


async def test_a_hanging_step_is_a_timeout_that_names_it(model_dir: Path) -> None:
    class Hangs(Countdown):
        async def step(self, message: Message) -> StepResult:
            await asyncio.Event().wait()
            raise AssertionError

    episode = await play(EnvironmentAgent(Hangs, step_timeout_s=0.05), "down", model_dir)
    assert episode.outcome.error is ErrorKind.TIMEOUT
    assert "environment Hangs.step: no result within 0.05 s" in episode.outcome.message


class StepsToNothing(Countdown):
    async def step(self, message: Message) -> StepResult:
        return None  # type: ignore[return-value]


class OpensWithNothing(Countdown):
    async def reset(self, task: Task) -> list[Message]:
        return None  # type: ignore[return-value]


class OpensWithText(Countdown):
    async def reset(self, task: Task) -> list[Message]:
        return "count"  # type: ignore[return-value]


class OpensWithAPicture(Countdown):
    async def reset(self, task: Task) -> list[Message]:
        return [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]


class RewardsWithNan(Countdown):
    async def step(self, message: Message) -> StepResult:
        return StepResult(reward=float("nan"), done=True)


class RewardsWithText(Countdown):
    async def step(self, message: Message) -> StepResult:
        return StepResult(reward="a lot", done=True)  # type: ignore[arg-type]


class RepliesWithNothing(Countdown):
    async def step(self, message: Message) -> StepResult:
        return StepResult(None, reward=1.0)  # type: ignore[arg-type]


class StepsOutsideItsCoroutine(Countdown):
    def step(self, message: Message) -> Any:
        raise KeyError("world")


class CancelsItself(Countdown):
    async def step(self, message: Message) -> StepResult:
        raise asyncio.CancelledError


class LosesItsTools(Countdown):
    @property
    def tools(self) -> list[Tool]:  # type: ignore[override]
        raise KeyError("tools")


class OpensWithNoMessage(Countdown):
    async def reset(self, task: Task) -> list[Message]:
        return []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (StepsToNothing, "StepsToNothing.step: TypeError: it returned None, not a StepResult"),
        (OpensWithNothing, "OpensWithNothing.reset: TypeError: it returned None, not messages"),
        (OpensWithText, "OpensWithText.reset: TypeError: it returned 'count', not messages"),
        (OpensWithAPicture, "OpensWithAPicture: its messages or tools were refused: "),
        (RewardsWithNan, "RewardsWithNan.step: ValueError: its reward is nan"),
        (RewardsWithText, "RewardsWithText.step: ValueError: "),
        (RepliesWithNothing, "RepliesWithNothing.step: TypeError: it returned None, not messages"),
        (StepsOutsideItsCoroutine, "StepsOutsideItsCoroutine.step: KeyError: 'world'"),
        (CancelsItself, "CancelsItself.step: CancelledByItselfError: "),
        (LosesItsTools, "LosesItsTools.tools: KeyError: 'tools'"),
        (OpensWithNoMessage, "OpensWithNoMessage: its messages or tools were refused: "),
    ],
)
async def test_what_an_environment_does_wrong_is_never_the_agents_error_nor_a_reward(
    make: type[Environment], message: str, model_dir: Path
) -> None:
    episode = await play(EnvironmentAgent(make), "down", model_dir, on_agent_error=0.0)
    assert episode.reward is None
    assert episode.outcome.error is ErrorKind.ENVIRONMENT
    assert episode.outcome.message.startswith(f"environment {message}")


async def test_a_failing_close_does_not_hide_what_failed_before(
    model_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(StepsToNothing):
        async def close(self) -> None:
            raise RuntimeError("nothing to close")

    episode = await play(EnvironmentAgent(Broken), "down", model_dir)
    assert "Broken.step" in episode.outcome.message
    assert "environment Broken.close: RuntimeError: nothing to close" in caplog.text


async def test_a_failing_close_is_an_error_of_the_environment(model_dir: Path) -> None:
    class Broken(Countdown):
        async def close(self) -> None:
            raise RuntimeError("cannot close")

    episode = await play(EnvironmentAgent(Broken), "down", model_dir)
    assert episode.outcome.error is ErrorKind.ENVIRONMENT
    assert "Broken.close: RuntimeError: cannot close" in episode.outcome.message
