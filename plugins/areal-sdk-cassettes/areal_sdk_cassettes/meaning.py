"""The meaning of a tool call: equal for calls that ask for the same thing, however they are written."""

import json
from collections.abc import Mapping
from typing import Any

from areal_sdk import Message


def meaning_of(call: Message, defaults: Mapping[str, Any] | None = None) -> str:
    """The function and its arguments, as one normalised text.

    Space, the order of keys, `1.0` for `1`, and arguments that are null or have their default do not count. The order
    of a list does, and so do the letters of a text. Arguments that are no JSON object stay as they are.

    >>> one = {"function": {"name": "add", "arguments": '{"a": 1, "b": 2.0}'}}
    >>> meaning_of(one) == meaning_of({"function": {"name": "add", "arguments": '{"b":2,"a":1,"c":null}'}})
    True
    """
    name, arguments = call["function"]["name"], arguments_of(call)
    try:
        if isinstance(arguments, dict):
            arguments = _meant(arguments, defaults or {})
        return _text([name, arguments])
    except RecursionError:  # a model may nest as deep as it likes
        return _text([name, str(call["function"]["arguments"])])


def _meant(arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    known = {key: _text(_normalised(value)) for key, value in defaults.items()}
    values = {key: _normalised(value) for key, value in arguments.items() if value is not None}
    return {key: value for key, value in values.items() if known.get(key) != _text(value)}


def arguments_of(call: Message) -> Any:
    """The arguments of a call: a value if they are JSON, else their text."""
    arguments = call["function"].get("arguments") or "{}"
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments.strip()


def _normalised(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _normalised(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_normalised(item) for item in value]
    return value


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
