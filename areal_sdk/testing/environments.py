"""`check_environment`: does an environment keep its contract for every answer of a model?"""

import asyncio
import json
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from areal_sdk.environment import Environment, StepResult
from areal_sdk.testing.conformance import ConformanceError, in_time, require
from areal_sdk.testing.messages import assistant
from areal_sdk.types import Message, Task

_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

_SMALL_TALK = ("?", "I do not know", "7")

CANCELLED_S = 2.0
"""Time for a cancelled step to end; a run waits no longer."""

ROLES = ("system", "user", "assistant", "tool")


async def check_environment(
    make: Callable[[], Environment],
    task: Task,
    *,
    replies: Sequence[Message | str] = (),
    timeout_s: float = 10.0,
) -> list[StepResult]:
    """Play `replies`, then nonsense, in fresh environments; ConformanceError says what is wrong.

    Returns the steps of `replies`, for your own assertions.
    """
    name = getattr(make, "__name__", None) or repr(make)
    await _check_reset(make, task, name, timeout_s)
    results = await _play(make, task, replies, name, timeout_s)
    await _check_alone(make, task, replies or _SMALL_TALK, name, timeout_s)
    await _check_cancelled(make, task, name, timeout_s)
    for nonsense in _nonsense(make().tools):
        await _play(make, task, [nonsense], name, timeout_s)
    unused = make()
    await _call(unused.close(), f"{name}.close() without reset()", timeout_s)
    return results


async def _check_reset(
    make: Callable[[], Environment], task: Task, name: str, timeout_s: float
) -> None:
    openings = []
    for _ in range(2):
        environment = make()
        require(
            isinstance(environment, Environment),
            f"{name}() is {environment!r}, not an areal_sdk.Environment",
        )
        _check_tools(environment.tools, name)
        opening = await _call(environment.reset(task), f"{name}.reset()", timeout_s)
        require(len(opening) > 0, f"{name}.reset() returned no messages")
        _check_messages(opening, f"{name}.reset()")
        require(
            opening[-1]["role"] != "assistant",
            f"{name}.reset() ends with an assistant message: the model has nothing to answer",
        )
        openings.append(list(opening))
        await _call(environment.close(), f"{name}.close()", timeout_s)
    require(
        openings[0] == openings[1],
        f"{name}.reset() differs between two environments of one task: the members of a group must "
        "start alike; derive randomness from task.data or task.id",
    )


async def _play(
    make: Callable[[], Environment],
    task: Task,
    replies: Sequence[Message | str],
    name: str,
    timeout_s: float,
    *,
    may_end: bool = False,
) -> list[StepResult]:
    """Play `replies`, and return the steps. If the episode ends before the last reply, that is an error unless it `may_end`."""
    environment = make()
    results: list[StepResult] = []
    try:
        await _call(environment.reset(task), f"{name}.reset()", timeout_s)
        for reply in replies:
            if results and results[-1].done:
                require(may_end, f"{name} was done after {len(results)} of {len(replies)} replies")
                break
            await asyncio.sleep(0)  # an episode beside this one takes its turn
            message = assistant(reply) if isinstance(reply, str) else reply
            before = json.dumps(message)
            what = f"{name}.step({message})"
            result = await _call(environment.step(message), what, timeout_s)
            require(json.dumps(message) == before, f"{what} changed the message")
            _check_step(result, message, what)
            results.append(result)
    finally:
        await _call(environment.close(), f"{name}.close()", timeout_s)
    return results


async def _check_alone(
    make: Callable[[], Environment],
    task: Task,
    replies: Sequence[Message | str],
    name: str,
    timeout_s: float,
) -> None:
    """Check that the same replies give the same steps: played twice alone, and beside another episode."""

    async def play(replies: Sequence[Message | str]) -> list[StepResult]:
        return await _play(make, task, replies, name, timeout_s, may_end=True)

    first, again = await play(replies), await play(replies)
    require(
        first == again,
        f"{name} answered the same replies in two ways: {first} and {again}; derive randomness from "
        "task.data or task.id",
    )
    beside, _ = await asyncio.gather(play(replies), play(_SMALL_TALK[::-1]))
    require(
        first == beside,
        f"{name} goes differently beside another episode: {first} and {beside}; keep its state on self, "
        "not on the class or in the module",
    )


async def _check_cancelled(
    make: Callable[[], Environment], task: Task, name: str, timeout_s: float
) -> None:
    """Cancel a step, as a deadline or Ctrl-C does: the step must end, and `close` must still work."""
    environment = make()
    await _call(environment.reset(task), f"{name}.reset()", timeout_s)

    async def step() -> None:
        await environment.step(assistant("?"))

    stepping = asyncio.create_task(step())
    await asyncio.sleep(0)
    stepping.cancel()
    done, _ = await asyncio.wait({stepping}, timeout=min(timeout_s, CANCELLED_S))
    require(
        bool(done),
        f"{name}.step() goes on after it was cancelled: raise CancelledError again where it is caught",
    )
    if not stepping.cancelled():
        stepping.exception()  # it may have ended before, in any way
    await _call(environment.close(), f"{name}.close() after a cancelled step", timeout_s)


def _check_step(result: StepResult, message: Message, what: str) -> None:
    require(
        isinstance(result, StepResult),
        f"{what} returned {type(result).__name__}, not a StepResult",
    )
    reward = result.reward
    require(
        reward is None or (isinstance(reward, (int, float)) and math.isfinite(reward)),
        f"{what}: reward {reward!r} is neither a finite number nor None",
    )
    require(isinstance(result.done, bool), f"{what}: done is {result.done!r}, not a bool")
    _check_messages(result.messages, what)
    calls = {call["id"] for call in message.get("tool_calls", ())}
    answered = [m.get("tool_call_id") for m in result.messages if m["role"] == "tool"]
    for call_id in answered:
        require(call_id in calls, f"{what}: tool_call_id {call_id!r} answers no call")
    if result.done:
        return
    require(
        len(result.messages) > 0,
        f"{what} is not done and returned no messages: the model has nothing to answer",
    )
    require(
        set(answered) == calls,
        f"{what}: calls without an answer: {sorted(calls - set(answered))}; chat APIs refuse that",
    )


def _check_messages(messages: Sequence[Message], what: str) -> None:
    for message in messages:
        require(isinstance(message, dict), f"{what}: {message!r} is not a message")
        role = message.get("role")
        require(role in ROLES, f"{what}: role {role!r} is not one of {', '.join(ROLES)}")
        require("content" in message, f"{what}: a message of role {role!r} has no content")
        try:
            json.dumps(message)
        except (TypeError, ValueError) as exc:
            raise ConformanceError(f"{what}: a message is not JSON: {exc}") from None


def _check_tools(tools: Sequence[dict[str, Any]], name: str) -> None:
    seen: set[str] = set()
    for tool in tools:
        function = tool.get("function")
        require(
            tool.get("type") == "function" and isinstance(function, dict),
            f'{name}.tools: {tool!r} is not {{"type": "function", "function": {{...}}}}',
        )
        assert isinstance(function, dict)
        tool_name = function.get("name")
        require(
            isinstance(tool_name, str) and _TOOL_NAME.fullmatch(tool_name) is not None,
            f"{name}.tools: {tool_name!r} is not a tool name (letters, digits, '_' and '-')",
        )
        require(tool_name not in seen, f"{name}.tools: {tool_name!r} is there twice")
        seen.add(str(tool_name))
        parameters = function.get("parameters", {"type": "object"})
        require(
            isinstance(parameters, dict) and parameters.get("type") == "object",
            f"{name}.tools: the parameters of {tool_name!r} are not a JSON schema of an object",
        )


def _nonsense(tools: Sequence[dict[str, Any]]) -> list[Message]:
    """Messages of untrained models. An environment must answer them, not raise."""
    messages = [
        assistant(""),
        assistant("\x00\ud800 \N{PILE OF POO} <|im_end|>" + "la" * 5000),
        assistant(None, ("no_such_tool", {})),
    ]
    for tool in tools:
        called = tool["function"]["name"]
        messages += [
            assistant(None, (called, "{not json")),
            assistant(None, (called, "[]")),
            assistant(None, (called, "[" * 100_000)),  # json.loads raises RecursionError
            assistant("two at once", (called, {}), (called, {"no_such_argument": None})),
        ]
    return messages


async def _call(answer: Any, what: str, timeout_s: float) -> Any:
    try:
        return await in_time(answer, timeout_s=timeout_s, what=what)
    except ConformanceError:
        raise
    except Exception as exc:
        cure = "what the model says is data: answer it with a message or a reward"
        if ".reset()" in what:
            cure = "an episode must begin with every task: look at what task.data holds"
        raise ConformanceError(f"{what[:300]} raised {type(exc).__name__}: {exc}; {cure}") from exc
