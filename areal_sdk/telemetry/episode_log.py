"""The episodes of a run on disk: appended as they end, found by id.

`episodes/000001.jsonl` holds one episode a line, `episodes/000001.index` one short line for each
with where to find it. When the directory grows past its limit, the oldest pair goes.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson

from areal_sdk.telemetry.files import JsonLines, read_json_lines
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.trajectory import Trajectory
from areal_sdk.types import (
    Episode,
    ErrorKind,
    Exclusion,
    FinishReason,
    ForkReason,
    Outcome,
    OutcomeKind,
    Task,
    Turn,
)

FILE_BYTES = 16 * 1024 * 1024
KEEP_BYTES = 1024 * 1024 * 1024

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """An episode as the run saw it end."""

    episode: Episode
    trajectories: tuple[Trajectory, ...] = ()
    """The trained sequences: tokens, loss masks, versions."""
    dropped: DropReason | None = None
    version: int | None = None
    """The policy version when it ended."""
    split: str = "train"
    time: float = 0.0
    """Unix time when it was written."""


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """One line of the index."""

    id: str
    task_id: str
    group: str
    split: str
    time: float
    version: int | None
    reward: float | None
    success: bool | None
    dropped: DropReason | None
    error: str | None
    num_turns: int
    num_tokens: int
    """Number of sampled tokens."""
    duration_s: float
    file: str
    offset: int
    length: int


class EpisodeWriter:
    """Appends episodes to a directory. One writer a run; any number of readers, live."""

    def __init__(
        self, directory: Path, *, keep_bytes: int = KEEP_BYTES, file_bytes: int = FILE_BYTES
    ) -> None:
        self._directory = directory
        self._keep_bytes = keep_bytes
        self._file_bytes = file_bytes
        numbers = [int(path.stem) for path in directory.glob("*.jsonl")]
        self._number = max(numbers, default=1)
        self._open_files()

    def write(
        self,
        episode: Episode,
        *,
        trajectories: Sequence[Trajectory] = (),
        dropped: DropReason | None = None,
        version: int | None = None,
        split: str = "train",
    ) -> None:
        """Append one episode, and its line to the index."""
        if self._lines.size >= self._file_bytes:
            self._rotate()
        record = EpisodeRecord(episode, tuple(trajectories), dropped, version, split, time.time())
        offset, length = self._lines.append(record)
        self._index.append(_summarise(record, self._lines.path.name, offset, length))

    def close(self) -> None:
        self._lines.close()
        self._index.close()

    def _open_files(self) -> None:
        stem = self._directory / f"{self._number:06d}"
        self._lines = JsonLines(stem.with_suffix(".jsonl"))
        self._index = JsonLines(stem.with_suffix(".index"))

    def _rotate(self) -> None:
        self.close()
        self._number += 1
        self._open_files()
        finished = sorted(self._directory.glob("*.jsonl"))[:-1]
        total = sum(path.stat().st_size for path in finished)
        for oldest in finished:
            if total <= self._keep_bytes:
                return
            total -= oldest.stat().st_size
            oldest.with_suffix(".index").unlink(missing_ok=True)
            oldest.unlink()


def list_episodes(directory: Path) -> Iterator[EpisodeSummary]:
    """The episodes in `directory`, newest first."""
    for path in sorted(directory.glob("*.index"), reverse=True):
        rows = [row for _, row in read_json_lines(path)]
        for row in reversed(rows):
            yield _from_json(EpisodeSummary, row, dropped=_reason(row["dropped"]))


def find_episode(directory: Path, episode_id: str) -> EpisodeRecord | None:
    """The newest episode whose id is `episode_id`."""
    for summary in list_episodes(directory):
        if summary.id == episode_id:
            return read_episode(directory, summary)
    return None


def read_episode(directory: Path, summary: EpisodeSummary) -> EpisodeRecord:
    """The full record of the episode that `summary` describes."""
    with (directory / summary.file).open("rb") as file:
        file.seek(summary.offset)
        row = orjson.loads(file.read(summary.length))
    return EpisodeRecord(
        episode=_episode(row["episode"]),
        trajectories=tuple(_from_json(Trajectory, item) for item in row["trajectories"]),
        dropped=_reason(row["dropped"]),
        version=row["version"],
        split=row["split"],
        time=row["time"],
    )


def _summarise(record: EpisodeRecord, file: str, offset: int, length: int) -> EpisodeSummary:
    episode = record.episode
    outcome = episode.outcome
    return EpisodeSummary(
        id=episode.id,
        task_id=episode.task.id,
        group=episode.group,
        split=record.split,
        time=record.time,
        version=record.version,
        reward=outcome.reward,
        success=outcome.success,
        dropped=record.dropped,
        error=outcome.message if outcome.kind is OutcomeKind.ERROR else None,
        num_turns=len(episode.turns),
        num_tokens=sum(len(turn.output_tokens) for turn in episode.turns),
        duration_s=episode.duration_s,
        file=file,
        offset=offset,
        length=length,
    )


def _episode(row: Mapping[str, Any]) -> Episode:
    outcome = row["outcome"]
    return _from_json(
        Episode,
        row,
        task=Task(row["task"]["id"], row["task"]["data"]),
        turns=_turns(row["turns"]),
        outcome=_from_json(
            Outcome,
            outcome,
            kind=OutcomeKind(outcome["kind"]),
            error=ErrorKind(outcome["error"]) if outcome["error"] else None,
        ),
    )


def _turns(rows: Sequence[dict[str, Any]]) -> tuple[Turn, ...]:
    """The turns, sharing tokens as they did when they were written."""
    turns: list[Turn] = []
    for row in rows:
        new = row["new_tokens"] if "new_tokens" in row else row["prompt_tokens"]  # older runs
        is_whole = row.pop("num_prompt", len(new)) == len(new)
        turn = _from_json(
            Turn,
            row,
            new_tokens=tuple(new),
            finish_reason=FinishReason(row["finish_reason"]),
            fork=ForkReason(row["fork"]) if row["fork"] else None,
            excluded=Exclusion(row["excluded"]) if row["excluded"] else None,
            _before=None if is_whole else turns[row["parent"]],
        )
        turns.append(turn)
    return tuple(turns)


def _reason(name: str | None) -> DropReason | None:
    return DropReason(name) if name else None


def _from_json(cls: type[_T], row: Mapping[str, Any], **converted: Any) -> _T:
    """Rebuild a flat dataclass: lists become tuples, fields it does not know are left out."""
    assert is_dataclass(cls)
    known = {field.name: row[field.name] for field in fields(cls) if field.name in row}
    values = {
        name: tuple(value) if isinstance(value, list) else value for name, value in known.items()
    }
    return cls(**{**values, **converted})
