"""The agent that plays any `Environment`: reset, then generate and step until it is done."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from areal_sdk.agent import EpisodeContext, RolloutWorkflow
from areal_sdk.environment import Environment, StepResult
from areal_sdk.errors import DeadlineError, EnvironmentFailure, boundary
from areal_sdk.gateway.errors import ApiError
from areal_sdk.rollout.deadline import DeadlinePassed, within
from areal_sdk.types import Message, Outcome, Task

T = TypeVar("T")

LIMIT_CODES = frozenset({"context_length_exceeded", "episode_limit_reached"})
"""The refusals that end an episode as truncated: what was earned until then stands."""


class EnvironmentAgent(RolloutWorkflow):
    """Plays one fresh environment an episode, through the token door.

    Rewards of single turns stay with their turns; a reward that only the last turn got is the
    episode's; no reward at all leaves scoring to the reward functions.
    """

    def __init__(
        self, make: Callable[[], Environment], *, name: str = "", step_timeout_s: float = 60.0
    ) -> None:
        self._make = make
        self.name = name or getattr(make, "__name__", "environment")
        self._step_timeout_s = step_timeout_s

    async def run_episode(self, task: Task, context: EpisodeContext) -> Outcome | None:
        async with boundary(EnvironmentFailure, f"environment {self.name}"):
            environment = self._make()
        try:
            return await self._play(environment, task, context)
        finally:
            await self._ask("close", environment.close())

    async def _play(
        self, environment: Environment, task: Task, context: EpisodeContext
    ) -> Outcome | None:
        opening = await self._ask("reset", environment.reset(task))
        messages: list[Message] = list(opening)
        rewards: list[float | None] = []
        result = StepResult()
        while not result.done:
            try:
                turn = await context.generate(messages, tools=environment.tools)
            except ApiError as refusal:
                if refusal.code not in LIMIT_CODES:
                    raise
                break
            result = await self._ask("step", environment.step(turn.message))
            rewards.append(result.reward)
            messages += [turn.message, *result.messages]
        return _outcome(rewards, result.success if result.done else False)

    async def _ask(self, method: str, answer: Awaitable[T]) -> T:
        what = f"environment {self.name}.{method}"

        async def call() -> T:
            async with boundary(EnvironmentFailure, what):
                return await answer

        try:
            return await within(call(), self._step_timeout_s, what=what)
        except DeadlinePassed as exc:
            raise DeadlineError(f"{exc}: make it faster, or raise rollout.tool_timeout_s") from None


def _outcome(rewards: Sequence[float | None], success: bool | None) -> Outcome | None:
    scored = [reward for reward in rewards if reward is not None]
    if not scored:
        return None
    only_last = len(scored) == 1 and rewards[-1] is not None
    return Outcome.scored(
        sum(scored), success=success, turn_rewards=() if only_last else tuple(rewards)
    )


__all__ = ["LIMIT_CODES", "EnvironmentAgent"]
