"""Demonstrations: conversations in which BFCL's known solutions are carried out."""

import json
from typing import Any

from areal_sdk import Message, Task
from areal_sdk.types import Tool
from areal_sdk_bfcl.environment import Bfcl
from areal_sdk_bfcl.world import Call

DONE = "Done."
CANNOT = "I cannot do that with what I have."
"""The last words of a turn without known calls."""


async def demonstration(task: Task, *, environment: Bfcl | None = None) -> dict[str, Any]:
    """The conversation that solves the task, as `areal-sdk sft` reads it: messages and tools.

    The tools are those of the last turn. Where a function came later, the answer that it is missing is context: with
    these tools it would be wrong. environment: has the options of the run's environment, since the tools
    depend on them.
    """
    world = environment or Bfcl()
    messages = world.begin(task)
    refusals: list[tuple[Message, list[Tool]]] = []
    while True:
        known = world.known_calls()
        for call in known:
            message = called(call, len(messages))
            messages += [message, *(await world.step(message)).messages]
        said: Message = {"role": "assistant", "content": DONE if known else CANNOT}
        if not known:
            refusals.append((said, list(world.tools)))
        result = await world.step(said)
        messages += [said, *result.messages]
        if result.done:
            for refusal, offered in refusals:
                if offered != list(world.tools):
                    refusal["weight"] = 0
            return {"messages": messages, "tools": list(world.tools)}


def called(call: Call, number: int) -> Message:
    """An assistant's message with one call."""
    function = {"name": call.function, "arguments": json.dumps(dict(call.arguments))}
    asked = {"id": f"call_{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [asked]}
