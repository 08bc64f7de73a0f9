"""The meaning of a message as bytes: equal for every way in which clients write the same message.

Clients reorder the keys of arguments, send 1.0 back as 1, leave out the text beside a call, or write a call as text.
smolagents does the last: it writes an assistant's calls into the content (`Calling tools:` and a Python list) and the
results into user messages. Its CodeAgent calls no tools and repeats the code of the text as a call.
"""

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from areal_sdk.gateway.untrusted import loads
from areal_sdk.tool_calls import is_too_deep
from areal_sdk.types import Message

_LONG_NUMBER = re.compile(r"\d{19}")

_LONGEST_PARSED = 1_000_000
"""Maximum number of characters of a call's arguments that are parsed. Parsing longer ones takes seconds, so they are
compared as text."""

_BEFORE_CALLS = re.compile(r"^Calling tools:\n(?=\[)", re.M)

_MOST_CHARACTERS = 100_000
"""Length from which a list is treated as text: Python's own parser would read it on the event loop."""


def is_system(message: Message) -> bool:
    return message.get("role") in ("system", "developer")


_NO_CALLS: Mapping[Any, int] = {}


def meaning(message: Message, call_positions: Mapping[Any, int] = _NO_CALLS) -> bytes:
    """The bytes of what a message says; equal for every way of saying it."""
    role = message.get("role")
    content = message.get("content") or ""
    if role == "assistant":
        calls = message.get("tool_calls") or ()
        if not calls and (rewritten := calls_in_text(content)):
            text, written = rewritten
            if not repeats_code(written):
                return _calls_as_written(text, written)
            content = text
        meanings = [call_meaning(call) for call in calls]
        return orjson.dumps(["assistant", content.strip(), meanings], option=orjson.OPT_SORT_KEYS)
    if role == "tool":
        call = message.get("tool_call_id")
        return orjson.dumps(["tool", call_positions.get(call, call), content])
    if is_system(message):
        role = "system"
    return orjson.dumps([role, message.get("name"), content])


def ways_to_send_back(message: Message, stops: Sequence[str], *, before: str = "") -> list[bytes]:
    """The meanings under which clients send an answer back. The meaning of the answer itself comes first.

    `before` is the text that the model wrote beside earlier calls for the same question: semantic-kernel sends it
    back in front of the last answer.
    """
    content = message.get("content") or ""
    ways = [meaning(message)]
    if calls := message.get("tool_calls"):
        ways.append(_calls_as_written(content, calls))
    else:  # a stop string ended it: some clients write down what was cut off
        ways += [meaning({**message, "content": content + stop}) for stop in stops]
        if before.strip():
            ways.append(meaning({**message, "content": before + content}))
    return ways


def call_ids(message: Message) -> tuple[str, ...]:
    """The ids of the message's calls, if each call has an id of its own."""
    ids = [call.get("id") for call in message.get("tool_calls") or ()]
    are_own = all(isinstance(i, str) and i for i in ids) and len(set(ids)) == len(ids)
    return tuple(ids) if are_own else ()


def calls_by_id(message: Message) -> bytes | None:
    """The meaning of calls that came without the text beside them. Their ids tell which answer they belong to."""
    if message.get("role") != "assistant" or (message.get("content") or "").strip():
        return None
    ids = call_ids(message)
    if not ids:
        return None
    calls = [[i, *call_meaning(c)] for i, c in zip(ids, message["tool_calls"], strict=True)]
    return orjson.dumps(["assistant by ids", calls], option=orjson.OPT_SORT_KEYS)


def _calls_as_written(content: str, calls: Sequence[Mapping[str, Any]]) -> bytes:
    """The meaning of calls that a client wrote as text. It is the same for every order of the calls.

    smolagents runs calls side by side and writes each down when it ends; the results follow as text. The order counts
    in calls that keep their structure, because it tells which result belongs to which call.
    """
    meanings = sorted(map(call_meaning, calls), key=_in_order)
    return orjson.dumps(
        ["assistant as text", content.strip(), meanings], option=orjson.OPT_SORT_KEYS
    )


def _in_order(meaning: list[Any]) -> bytes:
    return orjson.dumps(meaning, option=orjson.OPT_SORT_KEYS)


def call_meaning(call: Mapping[str, Any]) -> list[Any]:
    function = call.get("function") or {}
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        if len(arguments) > _LONGEST_PARSED:
            return [function.get("name"), "text", arguments.strip()]
        try:
            arguments = _parse(arguments)
        except (ValueError, RecursionError):
            return [function.get("name"), "text", arguments.strip()]
    return [function.get("name"), "json", _one_number(arguments)]


def _parse(arguments: str) -> Any:
    """The JSON value. Integers beyond 64 bits would lose digits, so they become marked text."""
    if _LONG_NUMBER.search(arguments):
        value = json.loads(arguments, parse_int=lambda n: int(n) if len(n) < 19 else f"integer {n}")
        if is_too_deep(value):
            raise ValueError("too deep to be written again")
        return value
    return loads(arguments)


def _one_number(value: Any) -> Any:
    """The value with 1.0 as 1, since a JavaScript client sends 1.0 back as 1."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, dict):
        return {key: _one_number(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_one_number(item) for item in value]
    return value


def reasoning_of(message: Message) -> str:
    return str(message.get("reasoning_content") or message.get("reasoning") or "").strip()


def calls_in_text(content: str) -> tuple[str, list[dict[str, Any]]] | None:
    """The text and the calls of a content that smolagents wrote; None for any other content.

    >>> calls_in_text("Calling tools:\\n[{'id': 'c', 'function': {'name': 'f', 'arguments': {}}}]")
    ('', [{'id': 'c', 'function': {'name': 'f', 'arguments': {}}}])
    """
    if "Calling tools:\n" not in content:
        return None
    found = _BEFORE_CALLS.search(content)
    if found is None:
        return None
    written = content[found.end() :].rstrip()
    if not written.endswith("]") or len(written) > _MOST_CHARACTERS:
        return None
    try:
        calls = loads(orjson.dumps(ast.literal_eval(written)))
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None  # TypeError: Python that JSON cannot say
    if not all(isinstance(c, dict) and isinstance(c.get("function"), dict) for c in calls):
        return None
    return content[: found.start()].rstrip(), calls


def repeats_code(calls: Sequence[Mapping[str, Any]]) -> bool:
    """Whether CodeAgent wrote these calls, which only repeat the text before them. A tool that takes code has
    arguments with names; CodeAgent's call has the code alone."""
    if len(calls) != 1:
        return False
    function = calls[0]["function"]
    return function.get("name") == "python_interpreter" and isinstance(
        function.get("arguments"), str
    )
