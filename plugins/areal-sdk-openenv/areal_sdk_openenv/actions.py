"""Actions and observations in the words of a model: tools from a schema, text from fields."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from areal_sdk import Message
from areal_sdk.environment import read_arguments
from areal_sdk_openenv.connection import RefusedError

JSON = Any
ACT = "act"
"""Name of the tool that an environment with one kind of action becomes."""
LIST_TOOLS = {"type": "list_tools"}
"""The action that a server of tools answers with its tools."""


def has_tools(schema: Mapping[str, JSON]) -> bool:
    """Whether the actions of a server are calls of tools, which it lists.

    >>> has_tools({"properties": {"tool_name": {}, "arguments": {}}}), has_tools({"properties": {"move": {}}})
    (True, False)
    """
    return {"tool_name", "arguments"} <= set(schema.get("properties") or ())


def tool_of(schema: Mapping[str, JSON], *, description: str) -> JSON:
    """The tool whose arguments are the fields of an action."""
    properties = {
        name: field
        for name, field in (schema.get("properties") or {}).items()
        if name != "metadata"
    }
    required = [name for name in schema.get("required") or () if name in properties]
    parameters = {"type": "object", "properties": properties, "required": required}
    if "$defs" in schema:
        parameters["$defs"] = schema["$defs"]
    function = {
        "name": ACT,
        "description": schema.get("description") or description,
        "parameters": parameters,
    }
    return {"type": "function", "function": function}


def tools_of(observation: Mapping[str, JSON]) -> list[JSON]:
    """The tools that a server lists."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool.get("description") or "",
                "parameters": tool.get("input_schema") or {"type": "object", "properties": {}},
            },
        }
        for tool in observation.get("tools") or ()
    ]


def action_of(call: Message, tools: Sequence[JSON], *, calls_tools: bool) -> JSON:
    """The action of a tool call. `RefusedError`: the model wrote none."""
    function = call["function"]
    known = [tool["function"]["name"] for tool in tools]
    if function["name"] not in known:
        raise RefusedError(f"no tool {function['name']!r}; there are {', '.join(known) or 'none'}")
    if (given := read_arguments(call)) is None:
        raise RefusedError("the arguments are no JSON object")
    if calls_tools:
        return {"type": "call_tool", "tool_name": function["name"], "arguments": given}
    return given


def text_of(observation: Mapping[str, JSON]) -> str:
    """The text of an observation for the model: its only text as it is, else its fields as JSON.

    >>> text_of({"board": "x.o", "metadata": {}}), text_of({"row": 1, "legal": [0, 2], "hint": None})
    ('x.o', '{"row": 1, "legal": [0, 2]}')
    >>> text_of({"tool_name": "add", "result": {"content": [{"type": "text", "text": "3"}]}, "error": None})
    '3'
    """
    if {"tool_name", "result"} <= set(observation):
        return _result_of(observation)
    told = {
        name: value
        for name, value in observation.items()
        if name != "metadata" and value not in (None, "", [], {})
    }
    if len(told) == 1 and isinstance(only := next(iter(told.values())), str):
        return only
    return json.dumps(told, ensure_ascii=False)


def _result_of(observation: Mapping[str, JSON]) -> str:
    """The result of a tool: its texts, or what went wrong."""
    if error := observation.get("error"):
        message = error.get("message") if isinstance(error, Mapping) else error
        return f"error: {message}"
    result = observation.get("result")
    if isinstance(result, Mapping) and isinstance(result.get("content"), list):
        return "\n".join(
            str(part.get("text", f"[{part.get('type')}]")) for part in result["content"]
        )
    return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)
