"""The lines of an index: one for each episode, and marks of what became of episodes later.

A run directory may come from a stranger, from a newer version or from a machine that went down. `checked` decides
which lines this version can read, so that no odd line hides the others.
"""

import hashlib
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from operator import itemgetter
from types import NoneType, UnionType
from typing import Any, NamedTuple

import orjson

from areal_sdk.telemetry.episode_files import OLD_RECORDS, RECORDS
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.types import Episode, OutcomeKind, Task

KEY_BYTES = 6
"""Bytes of a task's key: among 100,000 tasks two have the same key by chance in one run of 50,000."""
_SOURCES = ("source", "family")
"""The data that name the source of a task (`Task.source`), and are no part of what it asks."""
_CANONICAL = orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_SORT_KEYS
TEXT_LENGTH = 160
"""Number of characters that the index keeps of an episode's last answer."""
_NUMBER = int | float
_TYPES: Mapping[str, type | UnionType] = {
    **dict.fromkeys(("id", "task_id", "group", "split"), str),
    **dict.fromkeys(("num_turns", "num_tokens", "offset", "length"), int),
    **dict.fromkeys(("time", "duration_s"), _NUMBER),
}
"""The types of the fields that every line of an episode has."""
_ALL_TYPES: Mapping[str, type | UnionType] = {
    **_TYPES,
    **dict.fromkeys(("dropped", "error"), str | None),
    **dict.fromkeys(("text", "task_key"), str),
    **dict.fromkeys(("version", "measures", "step"), int | None),
    **dict.fromkeys(("reward", "advantage"), _NUMBER | None),
    "turn_advantages": list,
    "success": bool | None,
    "file": str,
}
_MAX_PLACE = 1 << 48
_FILE = re.compile(rf"(eval-)?\d+({re.escape(RECORDS)}|{re.escape(OLD_RECORDS)})", re.ASCII)
"""The names that a file of records may have. A line of an earlier version names its file; a line must not choose any
other file of this machine."""


class EpisodeSummary(NamedTuple):
    """One line of the index. It is a tuple, which is made in a third of the time: a run may have 100,000 of them."""

    id: str
    task_id: str
    group: str
    split: str
    time: float
    version: int | None
    reward: float | None
    success: bool | None
    dropped: DropReason | str | None
    """The reason why the episode was dropped; plain text if a newer version of the SDK wrote it."""
    error: str | None
    num_turns: int
    num_tokens: int
    """Number of sampled tokens."""
    duration_s: float
    file: str
    offset: int
    length: int
    text: str = ""
    """The beginning of the last answer, on one line."""
    step: int | None = None
    """The step that trained the episode; None if no step did."""
    advantage: float | None = None
    """Mean advantage of the episode's trained tokens in that step."""
    turn_advantages: tuple[float | None, ...] = ()
    task_key: str = ""
    """Digits that are equal for tasks that ask the same, whatever their split, run and id. Empty in runs of earlier versions."""
    measures: int | None = None
    """The step after which an evaluation played the episode."""


_VALUES = itemgetter(*EpisodeSummary._fields)
_EMPTY = {**dict.fromkeys(EpisodeSummary._fields), **EpisodeSummary._field_defaults}
"""The values of the fields that a line leaves out."""
_REASONS: dict[str | None, Any] = {"": None, **{str(one): one for one in DropReason}}


def checked(row: Any) -> dict[str, Any] | None:
    """A line of an index; None if this version cannot read the line.

    >>> checked([1]), checked({"id": "e", "time": "x"}), checked({"resumed": "x"})
    (None, None, None)
    >>> checked({"newer": 3}), checked({"resumed": 3})
    ({'newer': 3}, {'resumed': 3})
    """
    if not isinstance(row, dict):
        return None
    is_readable = _is_episode(row) if "id" in row else _is_note(row)
    return row if is_readable else None


def _is_episode(row: Mapping[str, Any]) -> bool:
    return (
        _are_typed(tuple(row), tuple(map(type, row.values())))
        and 0 <= row["offset"] < _MAX_PLACE
        and 0 <= row["length"] < _MAX_PLACE
        and ("file" not in row or _FILE.fullmatch(row["file"]) is not None)
    )


@lru_cache(maxsize=256)
def _are_typed(names: tuple[str, ...], kinds: tuple[type, ...]) -> bool:
    """Whether an episode's line has all fields, with the right types. It is cached, because most lines look alike."""
    return _TYPES.keys() <= set(names) and all(
        issubclass(kind, _ALL_TYPES.get(name, object))
        for name, kind in zip(names, kinds, strict=True)
    )


def _is_note(row: Mapping[str, Any]) -> bool:
    """Whether each part of a note that this version knows is what it should be."""
    if not all(
        isinstance(row[name], int) for name in ("resumed", "taken", "trained") if name in row
    ):
        return False
    credit = row.get("credit", {})
    return (
        ("taken" not in row or _are_names(row.get("waiting")))
        and ("trained" in row or not credit)
        and isinstance(credit, dict)
        and all(map(_is_credit, credit.values()))
        and ("drops" not in row or (isinstance(row["drops"], str) and _are_names(row.get("ids"))))
    )


def _are_names(names: Any) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _is_credit(credit: Any) -> bool:
    """Whether the value is the advantage of an episode, and those of its turns."""
    if not (isinstance(credit, list) and len(credit) == 2 and isinstance(credit[1], list)):
        return False
    return {type(credit[0]), *map(type, credit[1])} <= {int, float, NoneType}


def task_key(task: Task) -> str:
    """Digits that name what a task asks: its data without their source, or its id if that is all there is.

    The task keeps them from the first call on, which comes before play: an agent may change the data in place.

    >>> one, other = Task("train-1", {"q": "2+2?", "a": 4}), Task("sums/9", {"a": 4, "q": "2+2?", "source": "sums"})
    >>> task_key(one) == task_key(other) != task_key(Task("train-1", {"q": "2+3?"}))
    True
    """
    if not task.key:
        asked = {name: value for name, value in task.data.items() if name not in _SOURCES}
        content = task.id.encode(errors="surrogatepass")
        if asked:
            # An object that is no JSON has another text in each process.
            with suppress(TypeError):
                content = orjson.dumps(asked, option=_CANONICAL)
        digits = hashlib.blake2b(content, digest_size=KEY_BYTES).hexdigest()
        object.__setattr__(task, "key", digits)
    return task.key


def summary_row(episode: Episode, *, dropped: DropReason | None, split: str) -> dict[str, Any]:
    """The fields of an `EpisodeSummary` that the episode itself has; without those that are empty."""
    outcome = episode.outcome
    row = {
        "id": episode.id,
        "task_id": episode.task.id,
        "task_key": task_key(episode.task),
        "group": episode.group,
        "split": split,
        "reward": outcome.reward,
        "success": outcome.success,
        "dropped": dropped,
        "error": outcome.message if outcome.kind is OutcomeKind.ERROR else None,
        "num_turns": len(episode.turns),
        "num_tokens": sum(len(turn.output_tokens) for turn in episode.turns),
        "duration_s": round(episode.duration_s, 6),
        "text": _beginning(episode) or None,
    }
    return {name: value for name, value in row.items() if value is not None}


def summary_of(row: Mapping[str, Any], mark: Mapping[str, Any], *, file: str) -> EpisodeSummary:
    """The summary of an episode's line, changed by the fields of `mark` from later lines. `file` holds the record."""
    known = {**_EMPTY, "file": file, **row, **mark}
    known["dropped"] = _REASONS.get(known["dropped"], known["dropped"])
    return EpisodeSummary._make(_VALUES(known))


def marks_of(row: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields of summaries that a line changes, by episode, because a step trained the episodes or they were dropped."""
    if "drops" in row:
        return {key: {"dropped": _REASONS.get(row["drops"], row["drops"])} for key in row["ids"]}
    return {
        name: {"step": row["trained"], "advantage": advantage, "turn_advantages": tuple(by_turn)}
        for name, (advantage, by_turn) in row.get("credit", {}).items()
    }


def _beginning(episode: Episode) -> str:
    """The beginning of the last answer: its text, else its calls."""
    message = episode.turns[-1].message if episode.turns else {}
    given = message.get("tool_calls")
    calls = [call for call in given if isinstance(call, dict)] if isinstance(given, list) else []
    named = [call["function"] for call in calls if isinstance(call.get("function"), dict)]
    called = (f"-> {call.get('name')}({call.get('arguments', '')})" for call in named)
    text = message.get("content") or " ".join(called)
    return " ".join(str(text)[: 4 * TEXT_LENGTH].split())[:TEXT_LENGTH]
