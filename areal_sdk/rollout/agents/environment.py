"""The agent that plays any `Environment`: reset, then generate and step until it is done."""

import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from areal_sdk.agent import EpisodeContext, RolloutWorkflow
from areal_sdk.environment import Environment, StepResult
from areal_sdk.errors import (
    ConfigError,
    DeadlineError,
    EnvError,
    EpisodeError,
    boundary,
)
from areal_sdk.gateway.errors import ApiError
from areal_sdk.rollout.agents.deadline import DeadlinePassedError, within
from areal_sdk.types import Message, Outcome, Task, Turn

_CALLS_USER_CODE = True  # read by areal_sdk.errors.blame

T = TypeVar("T")
logger = logging.getLogger(__name__)

LIMIT_CODES = frozenset({"context_length_exceeded", "episode_limit_reached"})
"""Codes of the gateway's refusals that end an episode as truncated. The episode keeps its rewards so far."""


class EnvironmentAgent(RolloutWorkflow):
    """Plays each episode in a new environment, with `context.generate`.

    Rewards of single turns become turn rewards. If only the last turn has a reward, it is the reward
    of the episode. Without any reward the reward functions score the episode.
    """

    def __init__(
        self, make: Callable[[], Environment], *, name: str = "", step_timeout_s: float = 60.0
    ) -> None:
        self._make = make
        self.name = name or getattr(make, "__name__", "environment")
        self._step_timeout_s = step_timeout_s

    async def run_episode(self, task: Task, context: EpisodeContext) -> Outcome | None:
        async with boundary(EnvError, f"environment {self.name}"):
            environment = self._make()
        try:
            outcome = await self._play(environment, task, context)
        except BaseException:
            try:
                await self._close(environment)
            except EpisodeError as error:  # the error that ended the episode is raised instead
                logger.warning("%s", error)
            raise
        await self._close(environment)
        return outcome

    async def _play(
        self, environment: Environment, task: Task, context: EpisodeContext
    ) -> Outcome | None:
        messages = await self._ask("reset", partial(environment.reset, task), _read_messages)
        rewards: list[float | None] = []
        result = StepResult()
        while not result.done:
            try:
                turn = await self._generate(environment, messages, context)
            except ApiError as refusal:
                if refusal.code not in LIMIT_CODES:
                    raise
                break
            result = await self._ask("step", partial(environment.step, turn.message), _read_step)
            rewards.append(result.reward)
            messages += [turn.message, *result.messages]
        return _outcome(rewards, result.success if result.done else False)

    async def _generate(
        self, environment: Environment, messages: Sequence[Message], context: EpisodeContext
    ) -> Turn:
        """The model's next turn. An invalid request is an error of the environment, which wrote it."""
        async with boundary(EnvError, f"environment {self.name}.tools"):
            tools = tuple(environment.tools)
        try:
            return await context.generate(messages, tools=tools)
        except (ApiError, ConfigError) as refusal:
            if not _blames_the_request(refusal):
                raise
            raise EnvError(
                f"environment {self.name}: its messages or tools were refused: {refusal}"
            ) from refusal

    async def _close(self, environment: Environment) -> None:
        await self._ask("close", environment.close, lambda _: None)

    async def _ask(
        self, method: str, ask: Callable[[], Awaitable[Any]], read: Callable[[Any], T]
    ) -> T:
        """The result of `method`, converted by `read`. Every failure is an EnvError."""
        what = f"environment {self.name}.{method}"

        async def answer() -> Any:
            return await ask()

        async with boundary(EnvError, what):
            try:
                return read(await within(answer(), self._step_timeout_s, what=what))
            except DeadlinePassedError as exc:
                raise DeadlineError(
                    f"{exc}: make it faster, or raise rollout.tool_timeout_s"
                ) from None


def _blames_the_request(refusal: ApiError | ConfigError) -> bool:
    if isinstance(refusal, ApiError):
        return refusal.status == 400 and refusal.code not in LIMIT_CODES
    return True


def _read_messages(answer: Any) -> list[Message]:
    if not isinstance(answer, Sequence) or not all(isinstance(item, dict) for item in answer):
        raise TypeError(f"it returned {answer!r:.80}, not messages")
    return list(answer)


def _read_step(answer: Any) -> StepResult:
    if not isinstance(answer, StepResult):
        raise TypeError(f"it returned {answer!r:.80}, not a StepResult")
    reward = None if answer.reward is None else float(answer.reward)
    if reward is not None and not math.isfinite(reward):
        raise ValueError(f"its reward is {reward}: give a finite number, or None for no verdict")
    return replace(answer, messages=_read_messages(answer.messages), reward=reward)


def _outcome(rewards: Sequence[float | None], success: bool | None) -> Outcome | None:
    scored = [reward for reward in rewards if reward is not None]
    if not scored:
        return None
    only_last = len(scored) == 1 and rewards[-1] is not None
    return Outcome.scored(
        sum(scored), success=success, turn_rewards=() if only_last else tuple(rewards)
    )


__all__ = ["LIMIT_CODES", "EnvironmentAgent"]
