"""One canonical form of a chat message, so that nothing later asks which client wrote it."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

from areal_sdk.gateway.errors import bad_request
from areal_sdk.types import Message

_RESERVED = re.compile("[\ufdd0-\ufdef]")
"""Noncharacters that the renderer uses as marks; no text that is interchanged may hold them."""

_THOUGHT = re.compile(r"\s*<think>(?P<thought>.*?)</think>\s*", re.DOTALL)

_TEXTS = frozenset({"name", "tool_call_id", "reasoning_content", "reasoning"})

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool"})


def canonical(
    message: Message, *, splits_reasoning: bool = False, where: str = "messages"
) -> Message:
    """`message` with a string for content; thinking that an assistant shows is set apart.

    Content that is no text is a 400 that names `where`, the place of the message.
    """
    for name in ("reasoning_content", "reasoning"):
        said = message.get(name)
        if isinstance(said, str) and _clean(said) is not said:
            message = {**message, name: _clean(said)}
    content = message.get("content")
    text = join_text(content, param=f"{where}.content")
    if splits_reasoning and message.get("role") == "assistant" and "</think>" in text:
        thought = _THOUGHT.match(text)
        if thought:
            named = {"reasoning_content": thought["thought"].strip()}
            return {**named, **message, "content": text[thought.end() :]}
    return message if text is content else {**message, "content": text}


def in_order_of_calls(messages: list[Message], *, before: Sequence[Message] = ()) -> list[Message]:
    """Results that follow parallel calls, in the order of the calls.

    The order of results tells which call each of them answers. Templates that show no ids rely on it.
    """
    ordered: list[Message] = []
    for is_result, run in itertools.groupby(messages, lambda m: m.get("role") == "tool"):
        results = list(run)
        if is_result and len(results) > 1:
            caller = (ordered or before)[-1:]
            positions = {
                c.get("id"): i for m in caller for i, c in enumerate(m.get("tool_calls") or ())
            }
            ids = [m.get("tool_call_id") for m in results]
            if len(set(ids)) == len(ids) and positions.keys() >= set(ids):
                results.sort(key=lambda m: positions[m.get("tool_call_id")])
        ordered += results
    return ordered


def join_text(content: Any, *, param: str = "messages") -> str:
    """The text of a content: a string, nothing, or a list of text parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return _clean(content)
    if not isinstance(content, list):
        raise bad_request(f"{param} must be a string, null or a list of parts", param=param)
    return "".join(part_text(part, param=f"{param}[{index}]") for index, part in enumerate(content))


def part_text(part: Any, *, param: str) -> str:
    """The text of one part of a content."""
    if isinstance(part, str):
        return _clean(part)
    if isinstance(part, dict):
        for name in ("text", "refusal"):
            if isinstance(part.get(name), str):
                return _clean(part[name])
        kind = part.get("type")
        raise bad_request(
            f"{param}: content parts of type {kind!r} are not supported: text only", param=param
        )
    raise bad_request(f"{param}: a content part must be an object", param=param)


def _clean(text: str) -> str:
    """Text that can be encoded: without the renderer's marks, without halves of a surrogate pair."""
    if text.isascii():
        return text
    text = _RESERVED.sub("\ufffd", text)
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def check_message(message: Any, where: str) -> Message:
    """A message with a known role and texts where texts belong; 400 naming the place otherwise."""
    if not isinstance(message, dict):
        raise bad_request(f"{where} must be an object", param=where)
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        known = ", ".join(sorted(_ROLES))
        raise bad_request(f"{where}.role is {role!r}; known roles: {known}", param=f"{where}.role")
    for name in _TEXTS & message.keys():
        check_text(message[name], f"{where}.{name}")
    return message


def check_text(value: Any, where: str) -> str | None:
    """`value` if it is a text or nothing; 400 naming the place otherwise."""
    if value is None or isinstance(value, str):
        return value
    raise bad_request(f"{where} must be a string", param=where)
