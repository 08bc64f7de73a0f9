"""How models write tool calls: the shared pieces, and the Hermes style of Qwen and many others."""

from collections.abc import Sequence
from typing import Any

import orjson

from areal_sdk.gateway.parsers import MalformedCall, TaggedCalls, ToolCall, ToolFormat
from areal_sdk.types import Tool


def parse_json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as exc:
        raise MalformedCall(f"not JSON: {exc}") from exc


def as_call(value: Any) -> ToolCall:
    """`{"name": ..., "arguments" or "parameters": {...}}` as a call."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise MalformedCall('not an object with a "name"')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = parse_json(arguments)
    if not isinstance(arguments, dict):
        raise MalformedCall("the arguments are not an object")
    return ToolCall(value["name"], orjson.dumps(arguments).decode())


def _hermes_parser(tools: Sequence[Tool]) -> TaggedCalls:
    return TaggedCalls("<tool_call>", "</tool_call>", lambda body: [as_call(parse_json(body))])


def _hermes_opening(name: str | None) -> str:
    return "<tool_call>\n" + (f'{{"name": "{name}", "arguments": ' if name else "")


HERMES = ToolFormat(
    name="hermes",
    parser=_hermes_parser,
    shown=("<tool_call>", "</tool_call>"),
    opening=_hermes_opening,
    detect=("<tool_call>",),
)


_NATIVE = (HERMES,)


def choose_format(template_source: str) -> ToolFormat:
    """The format that a chat template speaks."""
    for tool_format in _NATIVE:
        if any(word in template_source for word in tool_format.detect):
            return tool_format
    return HERMES
