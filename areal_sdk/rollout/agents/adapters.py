"""Adapts every kind of agent to one call: `await play(task, context)`.

An agent with AReaL's signature `async def run(self, data, **extra)` runs unchanged: `data` is the task's data;
`extra` has `base_url`, `api_key` and `http_client`. It returns a reward, or rewards by completion id.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from areal_sdk.agent import (
    Agent,
    AgentForm,
    AgentFunction,
    AgentLike,
    EpisodeContext,
    RolloutWorkflow,
)
from areal_sdk.errors import AgentError, ConfigError
from areal_sdk.process.threads import in_thread
from areal_sdk.rollout.agents.agent_errors import agent_name
from areal_sdk.types import Episode, Outcome, Task

_CALLS_USER_CODE = True  # read by areal_sdk.errors.blame

PlayResult = Episode | Outcome | float | Mapping[str, float] | None
Play = Callable[[Task, EpisodeContext], Awaitable[PlayResult]]


@dataclass(frozen=True, slots=True)
class AgentInForm:
    """An agent in a form that a plugin brings, as a function of (task, context)."""

    name: str
    agent: Any
    form: AgentForm

    async def __call__(self, task: Task, context: EpisodeContext) -> Any:
        return await self.form.play(self.agent, task, context)


def as_play(agent: AgentLike) -> Play:
    """A function that plays an episode with `agent`; ConfigError if it is not an agent.

    Accepted: an `Agent`, a `RolloutWorkflow`, a function of (task, context), and objects with
    AReaL's own signature `run(self, data, **extra)`.
    """
    if inspect.isclass(agent):
        raise ConfigError(f"{agent.__name__} is a class: pass an instance, {agent.__name__}()")
    if isinstance(agent, RolloutWorkflow):
        return agent.run_episode
    if isinstance(agent, Agent):
        return _call(agent.run, agent_name(agent))
    run = getattr(agent, "run", None)
    if callable(run) and "data" in inspect.signature(run).parameters:
        return lambda task, context: play_run(agent, task, context)
    if callable(run):
        return _call(run, agent_name(agent))
    if callable(agent):
        return _call(agent, agent_name(agent))
    raise ConfigError(
        f"{agent!r} is not an agent: subclass areal_sdk.Agent, or write "
        "`async def agent(task, context)`"
    )


def runs_in_thread(agent: AgentLike) -> bool:
    """Whether the agent is a plain function, which goes on in its thread after a cancellation."""
    if isinstance(agent, RolloutWorkflow):
        return False
    function: Callable[..., object] = getattr(agent, "run", None) or cast(AgentFunction, agent)
    return not _is_async(function)


def _call(function: Callable[[Task, EpisodeContext], Any], name: str) -> Play:
    """Call a function: an async one on this loop, a plain one in a thread, so that it cannot block the loop."""

    async def play(task: Task, context: EpisodeContext) -> PlayResult:
        if _is_async(function):
            result = function(task, context)
        else:
            result = await in_thread(lambda: function(task, context), name=name)
        if inspect.isawaitable(result):
            result = await result
        return cast(PlayResult, result)

    return play


def _is_async(function: Callable[..., object]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with `async def __call__`
    )


async def guard(
    play: Play, task: Task, context: EpisodeContext, *, turnstile: asyncio.Lock
) -> PlayResult:
    """Play an episode. An `exit()` of the agent becomes an AgentError, so that it does not end the run. Episodes pass
    the `turnstile` one at a time, and the event loop has a round between two of them. An episode that waits there
    counts as playing: Ctrl-C cancels it before its agent can block the loop."""
    async with turnstile:
        await asyncio.sleep(0)
    try:
        return await play(task, context)
    except SystemExit as exc:
        raise AgentError(f"the agent called exit({exc.code!r})") from exc


def is_playing(task: "asyncio.Task[Any]") -> bool:
    """Whether the asyncio task runs `guard`, which plays an agent."""
    return getattr(task.get_coro(), "cr_code", None) is guard.__code__


class _Runs(Protocol):
    async def run(self, data: dict[str, Any], **extra: Any) -> Any: ...


async def play_run(agent: Any, task: Task, context: EpisodeContext) -> Any:
    runs: _Runs = agent
    return await runs.run(
        dict(task.data),
        base_url=context.base_url,
        api_key=context.api_key,
        http_client=context.http_client,
    )
