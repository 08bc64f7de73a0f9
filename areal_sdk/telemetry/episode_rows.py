"""An episode and its trajectories as JSON: what turns and branches have in common is written once.

Messages stand in one list; a turn names those that are new in it as ranges of that list.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import orjson

from areal_sdk.telemetry.files import to_json
from areal_sdk.trajectory import Branch, Trajectory
from areal_sdk.types import (
    Episode,
    ErrorKind,
    Exclusion,
    FinishReason,
    ForkReason,
    Message,
    Outcome,
    OutcomeKind,
    Task,
    Turn,
)

_T = TypeVar("_T")

Row = Mapping[str, Any]

_TRAJECTORY_FIELDS = [f.name for f in fields(Trajectory) if f.name != "branch"]
_PUBLIC = {
    cls: [f.name for f in fields(cls) if not f.name.startswith("_")] for cls in (Turn, Episode)
}


def episode_row(episode: Episode) -> dict[str, Any]:
    messages = _Messages()
    turns = [
        {**_public(turn), "new_messages": messages.ranges(turn.new_messages)}
        for turn in episode.turns
    ]
    return {**_public(episode), "turns": turns, "messages": messages.written}


def read_episode_row(row: Row, *, task: Task | None = None) -> Episode:
    """The episode of a row; of `task`, unless JSON is to say what was in its data."""
    outcome = row["outcome"]
    return from_json(
        Episode,
        row,
        task=task or Task(row["task"]["id"], row["task"]["data"]),
        turns=tuple(_turns(row["turns"], row.get("messages"))),
        outcome=from_json(
            Outcome,
            outcome,
            kind=OutcomeKind(outcome["kind"]),
            error=ErrorKind(outcome["error"]) if outcome["error"] else None,
        ),
    )


def trajectory_rows(trajectories: Sequence[Trajectory]) -> list[dict[str, Any]]:
    """Each trajectory names by `before` the one that it begins like, for `num_before` tokens."""
    places = {id(trajectory.branch): place for place, trajectory in enumerate(trajectories)}
    return [
        {
            **{name: getattr(t, name) for name in _TRAJECTORY_FIELDS},
            "before": None if t.branch.before is None else places[id(t.branch.before)],
            "num_before": t.branch.num_before,
        }
        for t in trajectories
    ]


def read_trajectory_rows(rows: Sequence[Row]) -> tuple[Trajectory, ...]:
    found: list[Trajectory] = []
    for row in rows:
        place = row.get("before")  # older runs have none
        before = None if place is None else found[place].branch
        branch = Branch(row["tokens"], before=before, num_before=row.get("num_before", 0))
        found.append(from_json(Trajectory, row, tokens=branch.tokens, branch=branch))
    return tuple(found)


def from_json(cls: type[_T], row: Row, **converted: Any) -> _T:
    """Rebuild a flat dataclass: lists become tuples, fields it does not know are left out."""
    assert is_dataclass(cls)
    known = {field.name: row[field.name] for field in fields(cls) if field.name in row}
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in known.items()
    }
    return cls(**{**values, **converted})


class _Messages:
    """The messages of an episode, each written once however many turns were asked with it."""

    def __init__(self) -> None:
        self.written: list[orjson.Fragment] = []
        self._by_content: dict[bytes, int] = {}
        self._by_id: dict[int, int] = {}
        """Messages that turns share are one object, as a rule. The episode keeps them alive."""

    def ranges(self, messages: Sequence[Message]) -> list[list[int]]:
        """Where the messages stand, as ranges `[first, last)`."""
        ranges: list[list[int]] = []
        for message in messages:
            place = self._by_id.get(id(message))
            if place is None:
                place = self._by_id[id(message)] = self._write(to_json(message))
            if ranges and ranges[-1][1] == place:
                ranges[-1][1] += 1
            else:
                ranges.append([place, place + 1])
        return ranges

    def _write(self, content: bytes) -> int:
        place = self._by_content.setdefault(content, len(self.written))
        if place == len(self.written):
            self.written.append(orjson.Fragment(content))
        return place


def _public(item: Turn | Episode) -> dict[str, Any]:
    return {name: getattr(item, name) for name in _PUBLIC[type(item)]}


def _turns(rows: Sequence[Row], messages: Sequence[Message] | None) -> Iterator[Turn]:
    """The turns, sharing tokens as they did when they were written."""
    turns: list[Turn] = []
    for row in rows:
        new = row["new_tokens"] if "new_tokens" in row else row["prompt_tokens"]  # older runs
        num_shared = row.get("num_prompt", len(new)) - len(new)
        keeper = row.get("shares_with", row["parent"] if num_shared else None)
        asked = row["new_messages"]
        if messages is not None:
            asked = [message for first, last in asked for message in messages[first:last]]
        turn = from_json(
            Turn,
            {name: value for name, value in row.items() if name != "num_prompt"},
            new_tokens=tuple(new),
            new_messages=tuple(asked),
            finish_reason=FinishReason(row["finish_reason"]),
            fork=ForkReason(row["fork"]) if row["fork"] else None,
            excluded=Exclusion(row["excluded"]) if row["excluded"] else None,
            num_shared=num_shared,
            shares_with=keeper,
            _before=None if keeper is None else turns[keeper],
        )
        turns.append(turn)
        yield turn
