"""Keys with dots, written as in TOML: `rollout.batch`, `reward."judge.strict".weight`."""

import datetime
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from areal_sdk.errors import ConfigError

JSON = dict[str, Any]

NAMED_TABLES = ("agent", "env", "tasks")
"""Keys whose value is a name, or a table of options with the name inside."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^."'\s]+))\s*(?:\.(?=.)|$)""")


def split_key(key: str) -> list[str]:
    """The parts of a dotted key; a part with dots of its own stands in quotes.

    >>> split_key('reward."judge.strict".weight')
    ['reward', 'judge.strict', 'weight']
    """
    parts: list[str] = []
    position = 0
    while position < len(key) or not parts:
        match = _PART.match(key, position)
        if match is None:
            raise ConfigError(f"{key!r} is not a setting: write section.key")
        parts.append(next(part for part in match.groups() if part is not None))
        position = match.end()
    return parts


def join_key(*parts: str) -> str:
    """The dotted key of `parts`, as `split_key` reads it.

    >>> join_key("reward", "judge.strict", "weight")
    'reward."judge.strict".weight'
    """
    return ".".join(part if _BARE.fullmatch(part) else f'"{part}"' for part in parts)


def assign(values: JSON, key: str, value: Any) -> None:
    """Set the value at a dotted key; sections on the way are made."""
    *parents, leaf = split_key(key)
    if parents == ["rewards"]:
        _forget(values, "reward", leaf, "weight")  # the same setting, as it was written before
    for depth, parent in enumerate(parents):
        inner = values.setdefault(parent, {})
        if isinstance(inner, str) and not depth and parent in NAMED_TABLES:
            inner = values[parent] = {"name": inner}
        if not isinstance(inner, dict):
            raise ConfigError(f"cannot set {key!r}: {parent!r} is a value, not a section")
        values = inner
    if not parents and leaf in NAMED_TABLES and isinstance(values.get(leaf), dict):
        values[leaf]["name"] = value  # the options stay, whichever came first
    else:
        values[leaf] = value


def _forget(values: JSON, *parts: str) -> None:
    """Remove the value at the key `parts`, if there is one."""
    *parents, leaf = parts
    inner: Any = values
    for parent in parents:
        inner = inner.get(parent) if isinstance(inner, dict) else None
    if isinstance(inner, dict):
        inner.pop(leaf, None)


def parse_value(raw: str) -> Any:
    """The TOML value that `raw` spells, else `raw` itself, so that quotes are optional.

    >>> parse_value("3"), parse_value("smollm2"), parse_value("2026-01-01")
    (3, 'smollm2', '2026-01-01')
    """
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return raw
    return raw if isinstance(value, (datetime.date, datetime.time)) else value


def leaves(values: Mapping[str, Any], *prefix: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value inside, with the parts of its key."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, *prefix, key)
        else:
            yield (*prefix, key), value
