"""Demonstrations: conversations in which AgentDojo's own solutions are carried out."""

import json
from typing import Any

from agentdojo.functions_runtime import FunctionCall

from areal_sdk import Message, Task
from areal_sdk_agentdojo.case import Case
from areal_sdk_agentdojo.environment import AgentDojo
from areal_sdk_agentdojo.exposure import first_exposure
from areal_sdk_agentdojo.ground_truth import attacker_calls, user_calls

DONE = "Done."
"""The last words where the known solution has none."""


def demonstration(
    task: Task, *, obeys: bool = False, environment: AgentDojo | None = None
) -> dict[str, Any]:
    """The conversation that solves the user's task, as `areal-sdk sft` reads it: messages and tools.

    obeys: after the first message of the attacker, do first what the attacker wants. A model that imitates such
        conversations can be attacked.
    environment: has the options of the run's environment, since the prompt depends on them.
    """
    case = Case.of(task)
    calls = [called(call, number) for number, call in enumerate(user_calls(case))]
    if obeys and (read := first_exposure(case, calls)) is not None:
        wanted = attacker_calls(case)
        calls[read + 1 : read + 1] = [called(c, len(calls) + n) for n, c in enumerate(wanted)]
    world = environment or AgentDojo()
    messages = world.begin(case)
    for message in calls:
        messages += [message, *world.answer(message)]
    said = case.user_task.GROUND_TRUTH_OUTPUT or DONE
    messages.append({"role": "assistant", "content": said})
    return {"messages": messages, "tools": list(world.tools)}


def called(call: FunctionCall, number: int) -> Message:
    """An assistant's message with one call."""
    function = {"name": call.function, "arguments": json.dumps(dict(call.args))}
    asked = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [asked]}
