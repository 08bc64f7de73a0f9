"""`GymnasiumText`: any Gymnasium environment whose spaces words can hold."""

import warnings
from collections.abc import Sequence
from typing import Any, Literal

import gymnasium

from areal_sdk import ConfigError, Environment, Message, StepResult, Task
from areal_sdk_gymnasium.spaces import actions_of, describe
from areal_sdk_gymnasium.worlds import as_plain_text, least_reward, world_of

Illegal = Literal["again", "end"]


class GymnasiumText(Environment):
    """One episode of `gymnasium.make(id, **arguments)`. The task's data: `seed`, and its own `id` and
    `arguments` where tasks differ in them.

    The reward of a step is the reward of the turn that caused it.
    """

    def __init__(
        self,
        *,
        id: str = "",
        arguments: dict[str, Any] | None = None,
        max_turns: int = 20,
        render: bool = False,
        rules: str | None = None,
        actions: tuple[str, ...] = (),
        on_illegal: Illegal = "again",
        illegal_reward: float | None = None,
        reward_scale: float = 1.0,
    ) -> None:
        """Options.

        id: the environment, where tasks name none.
        arguments: keyword arguments of `gymnasium.make`; those of the task go over them.
        max_turns: the answers of the model, illegal ones included.
        render: show the picture (render_mode "ansi") instead of the observation.
        rules: the first words; default: ours for the environments of toy text, else none.
        actions: names of Discrete actions, in order; default: ours for toy text, else their numbers.
        on_illegal: an answer without a legal action is asked "again", or "end"s the episode.
        illegal_reward: the reward of an illegal answer; default: 0.0 where no step loses, else a tenth
            below the worst step (for each turn that is left, where it ends the episode).
        reward_scale: the environment's rewards are multiplied by it.
        """
        self._id = id
        self._arguments = arguments or {}
        self._turns_left = max_turns
        self._render = render
        self._rules = rules
        self._names = actions
        self._on_illegal = on_illegal
        self._illegal_reward = illegal_reward
        self._reward_scale = reward_scale
        self._env: gymnasium.Env[Any, Any] | None = None

    async def reset(self, task: Task) -> Sequence[Message]:
        name = str(task.data.get("id") or self._id)
        if not name:
            raise ConfigError(
                f"task {task.id!r} names no environment: give one, [env.gymnasium] id, or "
                'task.data["id"]'
            )
        self._world = world_of(name)
        self._env = _make(
            name, {**self._arguments, **task.data.get("arguments", {})}, render=self._render
        )
        self._actions = actions_of(self._env.action_space, self._names or self._world.actions)
        observation, _ = self._env.reset(seed=task.data.get("seed"))
        self._illegal = self._reward_of_illegal(name)
        rules = self._world.rules if self._rules is None else self._rules
        parts = (rules, self._see(observation), self._actions.words)
        return [_user("\n".join(part for part in parts if part))]

    async def step(self, message: Message) -> StepResult:
        """Every answer uses up a turn, so an episode always ends."""
        assert self._env is not None, "a run calls reset first"
        self._turns_left -= 1
        answers = _no_tools(message)
        action = self._actions.read(str(message.get("content") or ""))
        if action is None:
            ends = self._on_illegal == "end"
            is_over = ends or self._turns_left <= 0
            reward = self._illegal
            if ends and self._illegal_reward is None:
                reward *= 1 + self._turns_left  # an early end must not cost less than playing on
            told = f"That is no legal action. {self._actions.words}"
            return StepResult(
                [*answers, _user(told)],
                reward=reward,
                done=is_over,
                success=False if is_over else None,
            )
        observation, given, terminated, truncated, _ = self._env.step(action)
        reward = float(given)
        is_over = terminated or truncated or self._turns_left <= 0
        return StepResult(
            [*answers, _user(self._see(observation))],
            reward=reward * self._reward_scale,
            done=is_over,
            success=(terminated and self._world.is_success(reward)) if is_over else None,
        )

    async def close(self) -> None:
        if self._env is not None:
            self._env.close()

    def _reward_of_illegal(self, name: str) -> float:
        """The reward of an illegal answer. It is below every legal step if a step can lose: else a
        policy learns to answer nonsense."""
        if self._illegal_reward is not None:
            return self._illegal_reward
        assert self._env is not None
        least = least_reward(self._env, self._world)
        if least is None:
            raise ConfigError(
                f"gymnasium: the least reward of a step of {name} is not known: set illegal_reward, in "
                "[env.gymnasium], below it; were an illegal answer the cheaper one, a policy would "
                "learn to give it"
            )
        return 1.1 * min(0.0, least) * self._reward_scale

    def _see(self, observation: Any) -> str:
        assert self._env is not None
        if self._render:
            return as_plain_text(str(self._env.render()))
        if self._world.describe is not None:
            return self._world.describe(observation)
        return describe(self._env.observation_space, observation)


def _make(name: str, arguments: dict[str, Any], *, render: bool) -> gymnasium.Env[Any, Any]:
    """Make the environment. ConfigError if it cannot be made, or cannot be rendered as text."""
    given = {"render_mode": "ansi", **arguments} if render else arguments
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of older versions: gymnasium says so at each reset
            made: gymnasium.Env[Any, Any] = gymnasium.make(name, **given)
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as exc:
        raise ConfigError(f"gymnasium cannot make {name!r} with {arguments}: {exc}") from exc
    if render and "ansi" not in made.metadata.get("render_modes", ()):
        raise ConfigError(f"{name} has no picture as text (render mode ansi): leave render out")
    return made


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _no_tools(message: Message) -> list[Message]:
    """An answer to each tool call: models call tools that nobody offered, and chat APIs require answers."""
    calls = message.get("tool_calls") or ()
    text = "There are no tools."
    return [{"role": "tool", "tool_call_id": call["id"], "content": text} for call in calls]
