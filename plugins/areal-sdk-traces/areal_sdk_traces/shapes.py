"""Values out of JSON that somebody else wrote. A value of another kind is a BadRowError that names the field."""

import re
from collections.abc import Mapping
from typing import Any

import orjson

from areal_sdk_traces.book import BadRowError
from areal_sdk_traces.conversation import JSON, read_json

_MESSAGES = re.compile(r'\s*(\[\s*)?\{\s*"(role|messages|content|type|parts)"\s*:')


def mapping(value: object, what: str) -> JSON:
    if not isinstance(value, dict):
        raise BadRowError(f"{what} is {_kind(value)}, not an object")
    return value


def rows_of(value: object, what: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadRowError(f"{what} is {_kind(value)}, not a list")
    return value


def text(value: object, what: str) -> str:
    if not isinstance(value, str):
        raise BadRowError(f"{what} is {_kind(value)}, not a text")
    return value


def name_in(row: Mapping[str, Any], *keys: str) -> str:
    """The name of the row: the first of these fields that the row has. BadRowError if it has none."""
    for key in keys:
        value = row.get(key)
        if isinstance(value, str) and value:
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
    raise BadRowError(f"no {' or '.join(map(repr, keys))}")


def optional(row: Mapping[str, Any], *keys: str) -> Any:
    """The value of the first of these fields that has a value."""
    return next((row[key] for key in keys if row.get(key) is not None), None)


def word(row: Mapping[str, Any], *keys: str) -> str:
    """The first of these fields that is a text; else the empty text."""
    return next((row[key] for key in keys if isinstance(row.get(key), str)), "")


def words(value: object) -> tuple[str, ...]:
    """The texts of a list of tags; a mapping gives `key=value`."""
    if isinstance(value, Mapping):
        return tuple(f"{key}={one}" for key, one in value.items() if isinstance(one, (str, int)))
    return tuple(one for one in value if isinstance(one, str)) if isinstance(value, list) else ()


def parsed(value: object, what: str) -> Any:
    """The value of a text that holds JSON; another value is itself."""
    if not isinstance(value, str):
        return value
    try:
        return read_json(value)
    except ValueError as exc:
        raise BadRowError(f"{what} is a text that is no JSON: {exc}") from None


def parsed_or_text(value: object) -> Any:
    """The value as `parsed` gives it, but a text that is neither an object nor a list stays a text."""
    if not isinstance(value, str) or not value.lstrip().startswith(("{", "[")):
        return value
    try:
        return read_json(value)
    except ValueError:
        return value


def whole(value: object, what: str) -> object:
    """The value of `parsed_or_text`. BadRowError for a text that began as the JSON of messages and breaks off."""
    if isinstance(value, str) and _MESSAGES.match(value):
        raise BadRowError(f"{what} is JSON that breaks off")
    return value


def dumped(value: object) -> str:
    """A text as it is; anything else as JSON."""
    if isinstance(value, str):
        return value
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).decode()


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
    return "missing" if value is None else names.get(type(value), "a number")
