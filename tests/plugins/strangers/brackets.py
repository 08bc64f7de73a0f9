"""A family of models whose calls are `[call]{"name": ..., "arguments": {...}}[/call]`: a plugin in one file."""

import json
from collections.abc import Callable

from areal_sdk import hookimpl
from areal_sdk.tool_calls import TaggedCalls, ToolCall, ToolFormat


def read(body: str) -> list[ToolCall]:
    call = json.loads(body)
    return [ToolCall.of(call["name"], call["arguments"])]


BRACKETS = ToolFormat(
    name="brackets",
    parser=lambda tools: TaggedCalls("[call]", "[/call]", read),
    opening=lambda name: "[call]" + (f'{{"name": "{name}", "arguments": ' if name else ""),
    detect=("[call]",),
)


@hookimpl
def register_tool_formats(register: Callable[[str, ToolFormat], None]) -> None:
    register("brackets", BRACKETS)
