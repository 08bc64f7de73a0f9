"""What the tool formats share: JSON that is a call, and values written without quotes."""

from collections.abc import Sequence
from typing import Any

import orjson

from areal_sdk.gateway.errors import MalformedCallError
from areal_sdk.gateway.tool_calls.parser import ToolCall
from areal_sdk.gateway.untrusted import loads
from areal_sdk.types import Tool


def parse_json(text: str) -> Any:
    try:
        return loads(text)
    except orjson.JSONDecodeError as exc:
        raise MalformedCallError(f"not JSON: {exc}") from exc


def as_call(value: Any) -> ToolCall:
    """`{"name": ..., "arguments" or "parameters": {...}}` as a call."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise MalformedCallError('not an object with a "name"')
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = parse_json(arguments)
    if not isinstance(arguments, dict):
        raise MalformedCallError("the arguments are not an object")
    return make_call(value["name"], arguments)


def make_call(name: str, arguments: dict[str, Any]) -> ToolCall:
    if not name:
        raise MalformedCallError("a call without a name")
    return ToolCall(name, orjson.dumps(arguments).decode())


def declared_types(tools: Sequence[Tool], name: str) -> dict[str, object]:
    """The JSON type of each parameter that the tool of that name declares."""
    for tool in tools:
        if tool["function"]["name"] == name:
            properties = (tool["function"].get("parameters") or {}).get("properties") or {}
            return {key: _type_of(schema) for key, schema in properties.items()}
    return {}


def _type_of(schema: Any) -> object:
    return schema.get("type") if isinstance(schema, dict) else None


def unquoted(text: str, declared: object) -> object:
    """A value written without quotes: text where the tool declares a string, else JSON if it is."""
    if declared == "string":
        return text
    try:
        return loads(text)
    except orjson.JSONDecodeError:
        return text
