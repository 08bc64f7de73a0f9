"""Everything that counts as an agent, behind one call: `await play(task, context)`."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

from areal_sdk.agent import Agent, AgentFunction, AgentLike, EpisodeContext, RolloutWorkflow
from areal_sdk.errors import AgentError, ConfigError
from areal_sdk.process.threads import in_thread
from areal_sdk.rollout.areal import play_arun_episode, play_run
from areal_sdk.types import Episode, Outcome, Task

PlayResult = Episode | Outcome | float | Mapping[str, float] | None
Play = Callable[[Task, EpisodeContext], Awaitable[PlayResult]]


def as_play(agent: AgentLike) -> Play:
    """How to play an episode with `agent`; ConfigError for what is not an agent.

    Accepted: an `Agent`, a `RolloutWorkflow`, a function of (task, context), and objects with
    AReaL's own signatures, `run(self, data, **extra)` and `arun_episode(self, engine, data)`.
    """
    if inspect.isclass(agent):
        raise ConfigError(f"{agent.__name__} is a class: pass an instance, {agent.__name__}()")
    if isinstance(agent, RolloutWorkflow):
        return agent.run_episode
    if isinstance(agent, Agent):
        return _call(agent.run, agent_name(agent))
    if inspect.iscoroutinefunction(getattr(agent, "arun_episode", None)):
        return lambda task, context: play_arun_episode(agent, task, context)
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
    """Whether a cancelled episode goes on in its thread: a plain function cannot be stopped."""
    if isinstance(agent, RolloutWorkflow) or hasattr(agent, "arun_episode"):
        return False
    function: Callable[..., object] = getattr(agent, "run", None) or cast(AgentFunction, agent)
    return not _is_async(function)


def agent_name(agent: object) -> str:
    """What errors and logs call it."""
    name = getattr(agent, "name", None) or getattr(agent, "__name__", None)
    return name if isinstance(name, str) else type(agent).__name__


def _call(function: Callable[[Task, EpisodeContext], Any], name: str) -> Play:
    """Async functions run here; sync ones in a thread, so that they cannot block the others."""

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


async def guard(play: Play, task: Task, context: EpisodeContext) -> PlayResult:
    """Play, and keep an agent's `exit()` from ending the run."""
    try:
        return await play(task, context)
    except SystemExit as exc:
        raise AgentError(f"the agent called exit({exc.code!r})") from exc


def is_playing(task: "asyncio.Task[Any]") -> bool:
    """Whether the task is an agent's, begun by `guard`."""
    return getattr(task.get_coro(), "cr_code", None) is guard.__code__
