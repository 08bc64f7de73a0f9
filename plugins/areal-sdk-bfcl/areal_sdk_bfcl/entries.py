"""Entries: BFCL's conversations with their known solutions, and the functions of its APIs."""

import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal_sdk import ConfigError
from areal_sdk.types import Tool
from areal_sdk_bfcl.package import make_importable

CATEGORIES = ("base", "miss_func", "miss_param", "long_context")
_PREFIX = "BFCL_v4_multi_turn_"
_SCHEMA_TYPES = {"dict": "object", "float": "number"}
"""BFCL's own names of types, where JSON Schema has others."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One conversation."""

    id: str
    category: str
    asked: Sequence[str | None]
    """The user's words by turn; None where the turn brings functions that were missing so far."""
    truth: Sequence[Sequence[str]]
    """The known calls by turn, in Python's syntax; none where the model cannot do what the user asks."""
    classes: Sequence[str]
    """The APIs of the conversation."""
    initial_config: Mapping[str, Any]
    excluded: frozenset[str]
    """Functions that are never offered."""
    missed: Mapping[int, Sequence[str]]
    """Functions that are offered from this turn on only."""

    def offered(self, turn: int) -> list[Tool]:
        """The functions that the model may call in a turn."""
        late = {name for start, names in self.missed.items() if start > turn for name in names}
        tools = [tool for one in self.classes for tool in functions(one)]
        hidden = late | self.excluded
        return [tool for tool in tools if tool["function"]["name"] not in hidden]


def entry(entry_id: str) -> Entry:
    """The entry by its id; ConfigError if BFCL has no such entry."""
    category = entry_id.removeprefix("multi_turn_").rpartition("_")[0]
    found = entries(category).get(entry_id) if category in CATEGORIES else None
    if found is None:
        raise ConfigError(f"BFCL has no multi-turn entry {entry_id!r}; it has multi_turn_base_0")
    return found


@functools.cache
def entries(category: str) -> Mapping[str, Entry]:
    """The 200 entries of a category by id."""
    data = make_importable() / "data"
    name = f"{_PREFIX}{category}.json"
    known = {row["id"]: row["ground_truth"] for row in _rows(data / "possible_answer" / name)}
    return {
        row["id"]: Entry(
            id=row["id"],
            category=category,
            asked=[turn[0]["content"] if turn else None for turn in row["question"]],
            truth=known[row["id"]],
            classes=row["involved_classes"],
            initial_config=row["initial_config"],
            excluded=frozenset(row.get("excluded_function", ())),
            missed={int(turn): names for turn, names in row.get("missed_function", {}).items()},
        )
        for row in _rows(data / name)
    }


@functools.cache
def functions(class_name: str) -> Sequence[Tool]:
    """The functions of an API in OpenAI's form, from BFCL's documents."""
    data = make_importable() / "data" / "multi_turn_func_doc"
    from bfcl_eval.constants.executable_backend_config import MULTI_TURN_FUNC_DOC_FILE_MAPPING

    return [
        {
            "type": "function",
            "function": {
                "name": document["name"],
                "description": document["description"],
                "parameters": _schema(document["parameters"]),
            },
        }
        for document in _rows(data / MULTI_TURN_FUNC_DOC_FILE_MAPPING[class_name])
    ]


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line]


def _schema(value: Any) -> Any:
    """A JSON Schema of a document's parameters.

    >>> _schema({"type": "dict", "properties": {"type": {"type": "float"}}})
    {'type': 'object', 'properties': {'type': {'type': 'number'}}}
    """
    if isinstance(value, list):
        return [_schema(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: _SCHEMA_TYPES.get(one, one) if key == "type" and isinstance(one, str) else _schema(one)
        for key, one in value.items()
    }
