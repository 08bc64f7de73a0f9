"""The messages of an episode as blocks that a page shows: text, thoughts, tool calls, images. Long ones are cut."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from areal_sdk import Episode

Block = dict[str, Any]

MAX_TEXT = 20_000
"""Maximum number of characters of one block in the first answer; the page asks for the rest by parts."""
_PICTURES = {
    **{code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: 0x2421,
    **dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F], 0x2426),
}
"""Characters that the page shows as pictures: a quote may have either."""
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
    for function in calls_of(message):
        name, arguments = function.get("name", "?"), function.get("arguments", "")
        yield {"kind": "call", "name": text_of(name), "text": _arguments(arguments)}


def calls_of(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """The functions that a message calls; an empty one for what a caller sent in another form."""
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        yield function if isinstance(function, Mapping) else {}


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
    try:
        parsed = orjson.loads(given)  # type: ignore[arg-type]
    except orjson.JSONDecodeError:  # of what is no text, too
        parsed = given
    return text_of(parsed if isinstance(parsed, (dict, list)) else given)


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


def said(episode: Episode) -> Iterator[tuple[int | None, str]]:
    """Every text of an episode as a quote may have it, and its turn; arguments of calls as they were sent, too."""
    for message in conversation(episode):
        for block in message["blocks"]:
            yield message["turn"], plain(block["text"])
            yield message["turn"], plain(block.get("name", ""))
    for index, turn in enumerate(episode.turns):
        for message in (*turn.new_messages, turn.message):
            for function in calls_of(message):
                yield index, plain(str(function.get("arguments", "")))
    outcome = episode.outcome
    yield from ((None, plain(text)) for text in (outcome.message, outcome.trace))


def plain(text: str) -> str:
    """The text on one line, as Markdown shows it: a break is a space."""
    return " ".join(text.translate(_PICTURES).split())
