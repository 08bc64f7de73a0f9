"""`check_workflow`: does an agent or workflow survive the events of a run?"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from areal_sdk.agent import AgentLike
from areal_sdk.engine import GenerateRequest
from areal_sdk.testing.conformance import ConformanceError, require
from areal_sdk.testing.messages import tool_call
from areal_sdk.testing.run_agent import run_agent
from areal_sdk.testing.scripted_engine import Fault, Reply, ReplyLike
from areal_sdk.types import Episode, ErrorKind, OutcomeKind, Task

MAX_TURNS = 16


async def check_workflow(
    agent: "AgentLike | type[Any]",
    task: Task | Mapping[str, Any],
    *,
    replies: Sequence[ReplyLike],
    tools: Sequence[str] = (),
    model_dir: Path | None = None,
    timeout_s: float = 30.0,
) -> Episode:
    """Play `replies`, then nonsense of untrained models and faults of engines; ConformanceError says what is wrong.
    `tools` are names of tools that the nonsense should call.

    Returns the episode of `replies`, for your own assertions.
    """

    async def play(script: "_Script") -> Episode:
        return await run_agent(
            agent,
            task,
            engine=script,
            model_dir=model_dir,
            max_turns=MAX_TURNS,
            timeout_s=timeout_s,
        )

    good = await play(_Script(replies))
    _no_error(good, "the given replies")
    require(
        len(good.turns) == len(replies),
        f"the agent asked for {len(good.turns)} replies and {len(replies)} were given",
    )
    await _survive(play, tools)
    together = await asyncio.gather(*(play(_Script(replies)) for _ in range(4)))
    for episode in together:
        require(
            _said(episode) == _said(good) and episode.outcome == good.outcome,
            "four episodes at once went differently than one alone: keep no state on the agent",
        )
    return good


async def check_survival(
    agent: "AgentLike | type[Any]", task: Task | Mapping[str, Any], *, timeout_s: float = 30.0
) -> None:
    """Check as `check_workflow` does, for an agent whose replies you do not script: nonsense, faults, episodes at once."""

    async def play(script: "_Script") -> Episode:
        return await run_agent(agent, task, engine=script, max_turns=MAX_TURNS, timeout_s=timeout_s)

    await _survive(play, ())
    alone = await play(_Script(["7"]))
    for episode in await asyncio.gather(*(play(_Script(["7"])) for _ in range(2))):
        require(
            _said(episode) == _said(alone) and episode.outcome == alone.outcome,
            "two episodes at once went differently than one alone: keep no state on the agent",
        )


async def _survive(play: "Callable[[_Script], Awaitable[Episode]]", tools: Sequence[str]) -> None:
    for text in _nonsense(tools):
        _no_error(await play(_Script([text])), f"the reply {text[:60]!r} to everything")
    fault = await play(_Script([Reply(fault=Fault.RAISE)]))
    require(
        fault.outcome.error is ErrorKind.INFRASTRUCTURE,
        f"an engine fault became {fault.outcome}: it must not look like an answer",
    )


class _Script:
    """The replies in order, and the last one again for as long as the agent asks."""

    def __init__(self, replies: Sequence[ReplyLike]) -> None:
        self._replies = replies
        self._numbers = count()

    def __call__(self, request: GenerateRequest) -> ReplyLike:
        return self._replies[min(next(self._numbers), len(self._replies) - 1)]


def _no_error(episode: Episode, when: str) -> None:
    outcome = episode.outcome
    if outcome.kind is not OutcomeKind.ERROR:
        return
    if outcome.error is ErrorKind.AGENT and episode.truncated:
        return  # it ran into a limit, and the run decides what that is worth
    raise ConformanceError(
        f"with {when} the episode failed: {outcome.message}; what the model says is data: give it a "
        "low reward instead of raising"
    )


def _said(episode: Episode) -> list[str]:
    return [turn.text for turn in episode.turns]


def _nonsense(tools: Sequence[str]) -> list[str]:
    texts = ["", "la " * 50, "<tool_call>\n{not json\n</tool_call>", tool_call("no_such_tool")]
    for name in tools:
        texts += [tool_call(name), tool_call(name, no_such_argument=None)]
        texts += [f'<tool_call>\n{{"name": "{name}", "arguments": "x"}}\n</tool_call>']
    return texts
