"""Conversations with tools, and the text in which a template without tools writes them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from areal_sdk.types import Message, Tool


def function(name: str, parameters: Any = None, **more: Any) -> Tool:
    found = {"name": name, **more}
    if parameters is not None:
        found["parameters"] = parameters
    return {"type": "function", "function": found}


TOOLS: Sequence[Tool] = (
    function(
        "calculator",
        {
            "type": "object",
            "properties": {"expression": {"type": "string"}},
            "required": ["expression"],
        },
        description="Evaluate an arithmetic expression.",
    ),
    function(
        "search",
        {
            "type": "object",
            "properties": {
                "query": {"type": "string"},
                "limit": {"type": ["integer", "null"]},
                "order": {"enum": ["new", "old", 3, None]},
                "items": {},
                "any": True,
            },
            "required": ["query", "order"],
        },
        description="\n Find é.\nMore is not told.",
    ),
    function("now"),
    function("items", {"type": "object"}, description=None),
)


def call(name: str, arguments: Any) -> Message:
    made = {"id": "abcdefghi", "type": "function"}
    return {**made, "function": {"name": name, "arguments": arguments}}


def said(*calls: Message, content: str | None = None) -> Message:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(text: Any) -> Message:
    return {"role": "tool", "tool_call_id": "abcdefghi", "content": text}


ASKS: Message = {"role": "user", "content": "What is 11+22?"}
CONVERSATIONS: Mapping[str, Sequence[Message]] = {
    "one question": [ASKS],
    "a system message": [{"role": "system", "content": "Be brief."}, ASKS],
    "a developer": [{"role": "developer", "content": "Be brief."}, ASKS],
    "text in parts": [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}],
    "a call and its result": [
        ASKS,
        said(call("calculator", {"expression": "11+22"})),
        result("33"),
    ],
    "calls beside text": [
        ASKS,
        said(call("now", {}), call("search", {"query": "é\n", "limit": 3}), content="Let me see."),
        result("one"),
        result("two"),
        {"role": "assistant", "content": "33"},
        {"role": "user", "content": "Again"},
    ],
    "a tool that nobody declared": [ASKS, said(call("keys", {"a": [1, {"b": None}]})), result("")],
    "another argument": [ASKS, said(call("calculator", {"text": "1", "expression": "2"}))],
    "no content": [ASKS, {"role": "assistant", "content": None}, ASKS],
    "thoughts": [ASKS, {"role": "assistant", "content": "33", "reasoning_content": "hm"}, ASKS],
}


def as_text(messages: Sequence[Message]) -> Sequence[Message]:
    """The conversation as the gateway takes it: one text for each content, arguments as JSON."""
    written = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            content = "".join(part["text"] for part in content)
        changed = {**message, "content": content}
        if message.get("tool_calls"):
            changed["tool_calls"] = [
                {**c, "function": {**c["function"], "arguments": _json(c["function"]["arguments"])}}
                for c in message["tool_calls"]
            ]
        written.append(changed)
    return written


def _json(arguments: Any) -> str:
    text = json.dumps(arguments, ensure_ascii=False)
    return arguments if isinstance(arguments, str) else text
