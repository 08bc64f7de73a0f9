"""Adapts every kind of agent to one call: `await play(task, context)`.

Agents with AReaL's own signatures run unchanged:

* `async def run(self, data, **extra)`: `data` is the task's data; `extra` has `base_url`,
  `api_key` and `http_client`. Returns a reward, or rewards by completion id.
* `async def arun_episode(self, engine, data)`: `engine.agenerate(request)` takes an object with
  `input_ids` (and `gconfig.max_new_tokens`, `gconfig.temperature`, `gconfig.stop`) and answers with
  `input_tokens, output_tokens, output_logprobs, output_versions, stop_reason`. Only
  the reward is read from its result: the tokens are those that were recorded. None rejects the
  episode.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, cast

from areal_sdk.agent import Agent, AgentFunction, AgentLike, EpisodeContext, RolloutWorkflow
from areal_sdk.errors import AgentError, ConfigError
from areal_sdk.process.threads import in_thread
from areal_sdk.types import Episode, Outcome, Task, Turn

_CALLS_USER_CODE = True  # read by areal_sdk.blame

PlayResult = Episode | Outcome | float | Mapping[str, float] | None
Play = Callable[[Task, EpisodeContext], Awaitable[PlayResult]]


def as_play(agent: AgentLike) -> Play:
    """A function that plays an episode with `agent`; ConfigError if it is not an agent.

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
    """Whether the agent is a plain function, which goes on in its thread after a cancellation."""
    if isinstance(agent, RolloutWorkflow) or hasattr(agent, "arun_episode"):
        return False
    function: Callable[..., object] = getattr(agent, "run", None) or cast(AgentFunction, agent)
    return not _is_async(function)


def agent_name(agent: object) -> str:
    """The name of the agent in errors and logs."""
    name = getattr(agent, "name", None) or getattr(agent, "__name__", None)
    return name if isinstance(name, str) else type(agent).__name__


def _call(function: Callable[[Task, EpisodeContext], Any], name: str) -> Play:
    """Async functions run on this loop; plain ones in a thread, so that they cannot block the loop."""

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
    """Play; an `exit()` of the agent becomes an AgentError, so that it does not end the run.

    At the `turnstile` episodes begin one at a time: a burst of them leaves the event loop a round in
    between. An episode that waits there counts as playing: Ctrl-C cancels the episode before its agent
    can block the loop.
    """
    async with turnstile:
        await asyncio.sleep(0)
    try:
        return await play(task, context)
    except SystemExit as exc:
        raise AgentError(f"the agent called exit({exc.code!r})") from exc


def is_playing(task: "asyncio.Task[Any]") -> bool:
    """Whether the task runs `guard`, and so an agent."""
    return getattr(task.get_coro(), "cr_code", None) is guard.__code__


@dataclass(frozen=True, slots=True)
class ModelResponse:
    """One completion, with AReaL's field names."""

    input_tokens: list[int]
    output_tokens: list[int]
    output_logprobs: list[float]
    output_versions: list[int]
    stop_reason: str
    rid: str = ""

    @property
    def input_len(self) -> int:
        return len(self.input_tokens)

    @property
    def output_len(self) -> int:
        return len(self.output_tokens)


class SessionEngine:
    """`EpisodeContext.generate`, with AReaL's interface of an engine."""

    def __init__(self, context: EpisodeContext) -> None:
        self._context = context

    async def agenerate(self, req: Any) -> ModelResponse:
        config = getattr(req, "gconfig", None)
        turn = await self._context.generate(
            tuple(int(token) for token in req.input_ids),
            max_new_tokens=getattr(config, "max_new_tokens", None),
            temperature=getattr(config, "temperature", None),
            stop=tuple(getattr(config, "stop", None) or ()),
        )
        return _response(turn, rid=str(getattr(req, "rid", "")))

    def get_version(self) -> int:
        """The newest version seen in this episode."""
        return max((v for turn in self._context.turns for v in turn.versions), default=0)


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


async def play_arun_episode(
    agent: Any, task: Task, context: EpisodeContext
) -> Outcome | float | None:
    result = await agent.arun_episode(SessionEngine(context), dict(task.data))
    if result is None:
        return Outcome.abstained("arun_episode returned None: it rejected the episode")
    if isinstance(result, (int, float, Outcome)):
        return result
    if isinstance(result, Mapping):
        return _reward_of(result)
    raise AgentError(
        f"arun_episode returned {type(result).__name__}; a mapping with `rewards`, a number or "
        "None was expected"
    )


def _reward_of(result: Mapping[str, Any]) -> float:
    """The reward in AReaL's result: in a tensor or list `rewards`, or in one object per completion."""
    if "rewards" in result:
        rewards = result["rewards"]
        flat = rewards.flatten().tolist() if hasattr(rewards, "flatten") else rewards
        values = [float(value) for value in flat] if isinstance(flat, Sequence) else [float(flat)]
    else:
        values = [
            float(item.reward)
            for item in result.values()
            if getattr(item, "reward", None) is not None
        ]
    if len(values) != 1:
        raise AgentError(
            f"arun_episode returned {len(values)} rewards for one episode, which has one: let "
            "rollout.group_size play a task several times, or write `run(self, data, **extra)` and "
            "return rewards by completion id"
        )
    return values[0]


def _response(turn: Turn, *, rid: str) -> ModelResponse:
    return ModelResponse(
        input_tokens=list(turn.prompt_tokens),
        output_tokens=list(turn.output_tokens),
        output_logprobs=list(turn.logprobs),
        output_versions=list(turn.versions),
        stop_reason=turn.finish_reason.value,
        rid=rid,
    )
