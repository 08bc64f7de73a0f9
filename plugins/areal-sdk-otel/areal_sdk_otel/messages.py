"""Messages in the form of the semantic conventions: a role and parts."""

from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from areal_sdk.types import Message, Tool
from areal_sdk_otel.otlp import clean

Part = dict[str, Any]


def as_json(messages: Iterable[Message], *, finish_reason: str | None = None) -> str:
    """The messages as one text, the value of an attribute. Answers of the model have a `finish_reason`."""
    told = []
    for message in messages:
        one: dict[str, Any] = {"role": _text(message.get("role")), "parts": list(_parts(message))}
        if finish_reason is not None:
            one["finish_reason"] = finish_reason
        told.append(one)
    return orjson.dumps(told, default=str).decode()


def tools_as_json(tools: Iterable[Tool] | None) -> str | None:
    """The definitions of tools as one text: the conventions have the fields of a function beside its type."""
    if not tools:
        return None
    told = [{"type": "function", **(tool.get("function") or tool)} for tool in tools]
    return orjson.dumps(told, default=str).decode()


def _parts(message: Message) -> Iterator[Part]:
    content = message.get("content")
    if message.get("role") == "tool":
        id = _text(message.get("tool_call_id"))
        yield {"type": "tool_call_response", "id": id, "response": text_of(content)}
        return
    if thought := message.get("reasoning_content"):
        yield {"type": "reasoning", "content": _text(thought)}
    if content:
        yield from _text_parts(content)
    for call in message.get("tool_calls") or ():
        function = call["function"]
        yield {
            "type": "tool_call",
            "id": _text(call.get("id")),
            "name": _text(function["name"]),
            "arguments": _text(function.get("arguments")),
        }


def _text_parts(content: object) -> Iterator[Part]:
    """The texts of a message. Of a part without text, such as an image, the type alone leaves the run."""
    for part in content if isinstance(content, list) else [content]:
        if isinstance(part, dict) and "text" not in part:
            yield {"type": _text(part.get("type"))}
        else:
            yield {
                "type": "text",
                "content": _text(part["text"] if isinstance(part, dict) else part),
            }


def text_of(content: object) -> str:
    """The text of a message's content. Parts without text, such as images, are named by their type.

    >>> text_of([{"type": "text", "text": "look: "}, {"type": "image_url", "image_url": {}}])
    'look: [image_url]'
    """
    if not isinstance(content, list):
        return _text(content)
    return "".join(
        _text(part["text"] if "text" in part else f"[{part.get('type')}]")
        if isinstance(part, dict)
        else _text(part)
        for part in content
    )


def _text(value: object) -> str:
    return "" if value is None else clean(str(value))
