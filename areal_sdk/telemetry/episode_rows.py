"""An episode and its trajectories as JSON: the common parts of turns, branches and trajectories are written once.
Messages are in one list, and a turn names its new messages as ranges of that list. A field with its default is left
out. A trajectory names the turns whose tokens it trains, and the turns give its other fields."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import orjson

from areal_sdk.telemetry.files import to_json
from areal_sdk.trajectory import Branch, Trajectory, trajectory_on
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

_KINDS: Mapping[str, type[StrEnum]] = {
    "kind": OutcomeKind,
    "error": ErrorKind,
    "finish_reason": FinishReason,
    "fork": ForkReason,
    "excluded": Exclusion,
}
"""The fields whose text is one of a closed set."""
_DERIVED = ("num_prompt", "key")


def episode_row(episode: Episode) -> dict[str, Any]:
    messages = _Messages()
    row = _given(episode)
    row["task"] = _given(episode.task)
    row["outcome"] = _given(episode.outcome)
    row["turns"] = [_turn_row(turn, messages) for turn in episode.turns]
    row["messages"] = messages.written
    return row


def _turn_row(turn: Turn, messages: "_Messages") -> dict[str, Any]:
    row = _given(turn)
    row["new_messages"] = messages.ranges(turn.new_messages)
    if len({*turn.versions}) == 1:
        row["versions"] = turn.versions[0]
    logprobs = np.array(turn.logprobs, np.float32)
    if tuple(logprobs.tolist()) == turn.logprobs and np.isfinite(logprobs).all():
        row["float32_logprobs"] = logprobs  # in half the digits
        del row["logprobs"]
    return row


@np.errstate(over="raise")
def read_episode_row(row: Row, *, task: Task | None = None) -> Episode:
    """The episode of a row. `task` takes the place of the row's task, whose data went through JSON."""
    return from_json(
        Episode,
        row,
        task=task or from_json(Task, row["task"]),
        turns=tuple(_turns(row["turns"], row.get("messages"))),
        outcome=from_json(Outcome, row["outcome"]),
    )


def trajectory_rows(trajectories: Sequence[Trajectory], episode: Episode) -> list[dict[str, Any]]:
    """The rows of trajectories. `before` is the place of the trajectory that shares the first `num_before` tokens."""
    places = {id(trajectory.branch): place for place, trajectory in enumerate(trajectories)}
    rows = []
    for t in trajectories:
        row = _by_turns(t, episode) or _in_full(t)
        if t.branch.before is not None:
            row |= {"before": places[id(t.branch.before)], "num_before": t.branch.num_before}
        rows.append(row)
    return rows


def _in_full(trajectory: Trajectory) -> dict[str, Any]:
    return {f.name: getattr(trajectory, f.name) for f in fields(Trajectory) if f.name != "branch"}


def _by_turns(trajectory: Trajectory, episode: Episode) -> dict[str, Any] | None:
    """The trajectory, described by the turn with which it ends and the turns that it trains; None if this does not
    describe it."""
    branch, turns, outcome = trajectory.branch, episode.turns, episode.outcome
    trained = [place for place, turn in enumerate(turns) if _is_trained(trajectory, place, turn)]
    num_outputs = sum(len(turns[place].output_tokens) for place in trained)
    ends = trained[-1:] or range(len(turns))
    end = next((place for place in ends if turns[place].num_tokens == len(branch)), None)
    if (
        end is None
        or not trajectory.num_trained == int((trajectory.turn_of_token >= 0).sum()) == num_outputs
        or trajectory.tokens.tolist() != [*turns[end].tokens_from(branch.num_before)]
        or (trajectory.episode_id, trajectory.task_id) != (episode.id, episode.task.id)
        or (trajectory.reward, trajectory.turn_rewards) != (outcome.reward, outcome.turn_rewards)
        or trajectory.policy != turns[end].policy
    ):
        return None
    row = {
        "end": end,
        "trained": trained,
        "num_turns": trajectory.num_turns,
        "num_sampled": trajectory.num_sampled,
    }
    if trajectory.turn_alternatives:
        row["turn_alternatives"] = [[*others] for others in trajectory.turn_alternatives]
        row["turn_lengths"] = [*trajectory.turn_lengths]
    return row


def _is_trained(trajectory: Trajectory, place: int, turn: Turn) -> bool:
    """Whether the trajectory trains the output of the turn unchanged."""
    first = turn.num_prompt - trajectory.branch.num_before
    span = slice(first, first + len(turn.output_tokens))
    return (
        0 <= first < len(trajectory.tokens)
        and trajectory.turn_of_token[first] == place
        and trajectory.turn_of_token[span].tolist() == len(turn.output_tokens) * [place]
        and bool(trajectory.loss_mask[span].all())
        and bool((trajectory.temperatures[span] == np.float32(turn.temperature)).all())
        and trajectory.versions[span].tolist() == [*turn.versions]
        and np.array_equal(trajectory.logprobs[span], np.array(turn.logprobs, np.float32))
    )


def _from_turns(row: Row, episode: Episode, before: Branch | None, num_before: int) -> Trajectory:
    tokens = episode.turns[row["end"]].tokens_from(num_before)
    branch = Branch(tokens, before=before, num_before=num_before)
    return trajectory_on(
        branch,
        {place: episode.turns[place] for place in row["trained"]},
        episode_id=episode.id,
        task_id=episode.task.id,
        reward=episode.outcome.reward or 0.0,
        turn_rewards=episode.outcome.turn_rewards,
        turn_alternatives=_tuples(row.get("turn_alternatives", [])),
        num_turns=row["num_turns"],
        num_sampled=row["num_sampled"],
        turn_lengths=_tuples(row.get("turn_lengths", [])),
        policy=episode.turns[row["end"]].policy,
    )


@np.errstate(over="raise")
def read_trajectory_rows(rows: Sequence[Row], episode: Episode) -> tuple[Trajectory, ...]:
    found: list[Trajectory] = []
    for row in rows:
        place, num_before = row.get("before"), row.get("num_before", 0)  # older runs have none
        before = None if place is None else found[place].branch
        if "end" in row:
            found.append(_from_turns(row, episode, before, num_before))
            continue
        branch = Branch(row["tokens"], before=before, num_before=num_before)
        found.append(from_json(Trajectory, row, tokens=branch.tokens, branch=branch))
    return tuple(found)


def from_json(cls: type[_T], row: Row, **converted: Any) -> _T:
    """Rebuild a flat dataclass: lists become tuples, fields it does not know are left out."""
    assert is_dataclass(cls)
    known = {name: row[name] for name, _ in _fields(cls) if name in row and name not in converted}
    values = {
        name: _KINDS[name](value) if name in _KINDS and value else _tuples(value)
        for name, value in known.items()
    } | converted
    for name, hint in _hints(cls).items():
        if name in values and not _fits(values[name], hint):
            raise TypeError(f"{name} of {cls.__name__} is {values[name]!r:.60}")
    return cls(**values)


@cache
def _hints(cls: Any) -> Mapping[str, Any]:
    """The types of the fields that JSON may hold; empty for a `Trajectory`, whose arrays check their own types."""
    return {} if cls is Trajectory else get_type_hints(cls)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has the type of a field.

    >>> _fits((1, 2), tuple[int, ...]), _fits((1, None), tuple[int, ...]), _fits(3, float | None), _fits("x", float)
    (True, False, True, False)
    """
    kind, of = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(_fits(value, one) for one in of)
    if kind is tuple:
        is_tuple = isinstance(value, tuple)
        return is_tuple and ({*map(type, value)} <= {of[0]} or all(_fits(v, of[0]) for v in value))
    if kind is not None:
        is_of = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
        # JSON has null in place of NaN.
        return is_of and (of[1] is Any or all(v is None or _fits(v, of[1]) for v in value.values()))
    return isinstance(value, int | float if hint is float else hint)


@cache
def _fields(cls: Any) -> tuple[tuple[str, Any], ...]:
    """The public fields of a dataclass, each with its default; `MISSING` for one that has none."""
    return tuple(
        (f.name, f.default if f.default_factory is MISSING else f.default_factory())
        for f in fields(cls)
        if not f.name.startswith("_") and f.name not in _DERIVED
    )


def _given(item: Any) -> dict[str, Any]:
    """The public fields that do not have their default."""
    found = ((name, getattr(item, name), default) for name, default in _fields(item.__class__))
    return {name: value for name, value, default in found if value != default}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


class _Messages:
    """The messages of an episode, each written once however many turns were asked with it."""

    def __init__(self) -> None:
        self.written: list[orjson.Fragment] = []
        self._by_content: dict[bytes, int] = {}
        self._by_id: dict[int, int] = {}
        """Index of each message by the id of its object, since turns mostly share objects. The episode keeps them
        alive."""

    def ranges(self, messages: Sequence[Message]) -> list[list[int]]:
        """Places of the messages, as ranges `[first, last)`."""
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


def _turns(rows: Sequence[Row], messages: Sequence[Message] | None) -> Iterator[Turn]:
    """The turns, which share tokens as they did when they were written."""
    turns: list[Turn] = []
    for row in rows:
        new = row["new_tokens"] if "new_tokens" in row else row["prompt_tokens"]  # older runs
        num_shared = row.get("num_shared", row.get("num_prompt", len(new)) - len(new))
        keeper = row.get("shares_with", row.get("parent") if num_shared else None)
        parent = row.get("parent")
        if not (parent is None or 0 <= parent < len(turns)):
            raise ValueError(f"parent of turn {len(turns)} is {parent!r:.60}")
        asked = row["new_messages"]
        if messages is not None:
            asked = [message for first, last in asked for message in messages[first:last]]
        versions, logprobs = row["versions"], row.get("logprobs")
        if isinstance(versions, int):
            versions = len(row["output_tokens"]) * [versions]
        if logprobs is None:
            logprobs = np.array(row["float32_logprobs"], np.float32).tolist()
        turn = from_json(
            Turn,
            row,
            new_tokens=tuple(new),
            new_messages=tuple(asked),
            versions=tuple(versions),
            logprobs=tuple(logprobs),
            num_shared=num_shared,
            shares_with=keeper,
            _before=None if keeper is None else turns[keeper],
        )
        turns.append(turn)
        yield turn
