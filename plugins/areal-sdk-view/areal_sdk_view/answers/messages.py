"""The messages of an episode as blocks that a page shows: text, thoughts, tool calls, images. Long ones are cut."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from areal_sdk import Episode

Block = dict[str, Any]

MAX_TEXT = 20_000
"""Maximum number of characters of one block in the first answer; the page asks for the rest by parts."""
_THOUGHT = re.compile(r"\s*<think>(.*?)(?:</think>|\Z)", re.DOTALL)


def blocks_of(message: Mapping[str, Any]) -> list[Block]:
    """The blocks of a message, uncut."""
    return [block for block in _blocks(message) if block["text"] or block["kind"] == "call"]


def _blocks(message: Mapping[str, Any]) -> Iterator[Block]:
    for name in ("reasoning_content", "reasoning", "thinking"):
        if message.get(name):
            yield {"kind": "thought", "text": text_of(message[name])}
    content = message.get("content")
    for part in content if isinstance(content, list) else [content]:
        yield from _of_part(part)
    for call in calls_of(message):
        given = call.get("function") if isinstance(call, Mapping) else None
        function = given if isinstance(given, Mapping) else {}
        yield {
            "kind": "call",
            "name": text_of(function.get("name", "?")),
            "text": _arguments(function.get("arguments", "")),
        }


def calls_of(message: Mapping[str, Any]) -> list[Any]:
    """The tool calls of a message; none if a caller sent something else under this name."""
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def _of_part(part: object) -> Iterator[Block]:
    if isinstance(part, str):
        thought = _THOUGHT.match(part)
        if thought:
            yield {"kind": "thought", "text": thought[1].strip()}
            part = part[thought.end() :].lstrip("\n")
        yield {"kind": "text", "text": part}
    elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
        yield from _of_part(part["text"])
    elif part is not None:
        yield {"kind": "data", "text": text_of(part)}


def _arguments(given: object) -> str:
    """Arguments of a call as a person reads them: indented, where they are JSON."""
    if not isinstance(given, str):
        return text_of(given)
    try:
        parsed = orjson.loads(given)
    except orjson.JSONDecodeError:
        return given
    return text_of(parsed) if isinstance(parsed, (dict, list)) else given


def text_of(value: object) -> str:
    """A text as it is; another value as JSON, indented."""
    if isinstance(value, str):
        return value
    option = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS
    return orjson.dumps(value, option=option, default=repr).decode()


def cut(block: Block) -> Block:
    """The block with the beginning of its text, and its whole length if that is more."""
    text = block["text"]
    if len(text) <= MAX_TEXT:
        return block
    return {**block, "text": text[:MAX_TEXT], "length": len(text)}


def conversation(episode: Episode) -> list[dict[str, Any]]:
    """Every message of the episode once, in the order of the turns: role, name, turn and blocks."""
    found = []
    for index, turn in enumerate(episode.turns):
        asked = [(message, False) for message in turn.new_messages]
        for message, is_answer in [*asked, (turn.message, True)]:
            found.append(
                {
                    "role": str(message.get("role", "assistant" if is_answer else "?")),
                    "name": str(message.get("name") or message.get("tool_call_id") or ""),
                    "turn": index,
                    "is_answer": is_answer,
                    "blocks": blocks_of(message),
                }
            )
    return found
