"""The episodes of a run on disk: appended as they end, found by id.

`episodes/000001.jsonl` holds one episode a line, `episodes/000001.index` one short line for each
with the episode's place. Each step adds two lines to the index, after the lines of the episodes that it
trained: one says which groups are still waiting in the state that a checkpoint of this step holds, the
other names the episodes. A resume adds a line with the step that it goes on after: it plays again what
was not trained by then. When the directory grows past its limit, the oldest pair goes.
"""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from areal_sdk.telemetry.episode_rows import (
    episode_row,
    from_json,
    read_episode_row,
    read_trajectory_rows,
    trajectory_rows,
)
from areal_sdk.telemetry.files import JsonLines, read_json_lines, to_json
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.trajectory import Credit, Trajectory
from areal_sdk.types import Episode, OutcomeKind

FILE_BYTES = 16 * 1024 * 1024
KEEP_BYTES = 1024 * 1024 * 1024
TEXT_LENGTH = 160
"""Characters of an episode's last answer in the index."""


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
    step: int | None = None
    """The step that trained it. Known to readers; None until then."""
    credit: Credit | None = None
    """The advantages that this step gave the episode."""
    is_undone: bool = False
    """A resume went on before the step that trained it, or before it ended: it is no part of the run."""


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
    text: str = ""
    """The beginning of the last answer, on one line."""
    step: int | None = None
    """The step that trained it; None if none did."""
    advantage: float | None = None
    """Mean of its trained tokens in that step."""
    turn_advantages: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class PreparedRecord:
    """An episode as the writer appends it: two JSON objects without what only the writer knows.

    Any process can `prepare` it, so that the main process need not.
    """

    line: bytes
    """Up to the closing brace, as in `index`."""
    index: bytes


def prepare(
    episode: Episode,
    *,
    trajectories: Sequence[Trajectory] = (),
    dropped: DropReason | None = None,
    split: str = "train",
) -> PreparedRecord:
    """The record of an episode, for `EpisodeWriter.append`."""
    line = {
        "episode": episode_row(episode),
        "trajectories": trajectory_rows(trajectories),
        "dropped": dropped,
        "split": split,
    }
    index = _summary_row(episode, dropped=dropped, split=split)
    return PreparedRecord(to_json(line)[:-1], to_json(index)[:-1])


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
        measures: int | None = None,
    ) -> None:
        """Append one episode, and its line to the index. `measures`: of an evaluation after this step."""
        record = prepare(episode, trajectories=trajectories, dropped=dropped, split=split)
        self.append(record, version=version, measures=measures)

    def append(
        self, record: PreparedRecord, *, version: int | None, measures: int | None = None
    ) -> None:
        """Append what `prepare` made of an episode; `version` is the policy's when it ended."""
        if self._lines.size >= self._file_bytes:
            self._rotate()
        now = {"version": version, "time": time.time()}
        offset, length = self._lines.append_line(record.line + b"," + to_json(now)[1:])
        place = {"file": self._lines.path.name, "offset": offset, "length": length}
        if measures is not None:
            place["measures"] = measures
        self._index.append_line(record.index + b"," + to_json({**now, **place})[1:])

    def mark_taken(self, step: int, *, waiting: Sequence[str]) -> None:
        """Note the groups that are not consumed in the state after `step`: a resume plays them again."""
        self._index.append({"taken": step, "waiting": waiting})

    def mark_resumed(self, step: int | None) -> None:
        """Note that the run goes on after `step`; None: it begins anew."""
        # What was measured before the first step is measured again as well.
        self._index.append({"resumed": step or -1})

    def mark_trained(self, credit: Mapping[str, Credit], *, step: int) -> None:
        """Note which episodes `step` trained: each by its id, with what the step made of it."""
        if credit:
            marks = {name: [c.advantage, c.by_turn] for name, c in credit.items()}
            self._index.append({"trained": step, "credit": marks})

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
    """The episodes in `directory`, newest first, without those that a resume undid."""
    return (summary for summary, is_undone in _all_episodes(directory) if not is_undone)


def find_episode(directory: Path, episode_id: str) -> EpisodeRecord | None:
    """The newest episode whose id is `episode_id`; one that a resume undid only if there is no other."""
    undone: EpisodeSummary | None = None
    for summary, is_undone in _all_episodes(directory):
        if summary.id != episode_id:
            continue
        if not is_undone:
            return read_episode(directory, summary)
        undone = undone or summary
    return None if undone is None else replace(read_episode(directory, undone), is_undone=True)


@dataclass(slots=True)
class _Undoing:
    """What the resumes undid, for a reader that goes from the newest line to the oldest."""

    after: float = math.inf
    """The steps after this one are undone in what is older than the resumes that were met."""
    in_checkpoint: bool = True
    """What is older than the line that was just read had ended in the state that was resumed."""
    waiting: set[str] = field(default_factory=set)
    """The groups that were not consumed in that state."""

    def meet(self, line: Mapping[str, Any]) -> None:
        """Take a line that is no episode's."""
        if "resumed" in line:
            self.after = min(self.after, line["resumed"])
            self.in_checkpoint = False
        elif "taken" in line and line["taken"] <= self.after and not self.in_checkpoint:
            self.in_checkpoint = True
            self.waiting.update(line["waiting"])
        elif "trained" in line and line["trained"] < self.after:
            self.in_checkpoint = True  # older runs do not say what waited

    def undoes(self, row: Mapping[str, Any], step: int | None) -> bool:
        """Whether the episode is no part of the run: it was played, or measured, again.

        What callers played stays: nobody plays it again.
        """
        if row["split"] == "train" and step is None:
            return not self.in_checkpoint or row["group"] in self.waiting
        if row["split"] == "train":
            return self.is_undone(step)
        return self.is_undone(row.get("measures"))

    def is_undone(self, step: int | None) -> bool:
        return step is not None and step > self.after


def _all_episodes(directory: Path) -> Iterator[tuple[EpisodeSummary, bool]]:
    """The episodes newest first, and whether a resume undid each."""
    trained: dict[str, dict[str, Any]] = {}  # the marks of episodes that are yet to come
    undoing = _Undoing()
    for path in sorted(directory.glob("*.index"), reverse=True):
        rows = [row for _, row in read_json_lines(path)]
        for row in reversed(rows):
            if "id" not in row:
                undoing.meet(row)
                if "trained" in row:
                    trained = _marks(row) | trained
                continue
            mark = trained.pop(row["id"], {})  # an older episode of this id has a mark of its own
            is_undone = undoing.undoes(row, mark.get("step"))
            if not is_undone and undoing.is_undone(mark.get("step")):
                mark = {}  # a caller's episode, which no step of the run has trained
            summary = from_json(EpisodeSummary, {**row, **mark}, dropped=_reason(row["dropped"]))
            yield summary, is_undone


def read_episode(directory: Path, summary: EpisodeSummary) -> EpisodeRecord:
    """The full record of the episode that `summary` describes."""
    with (directory / summary.file).open("rb") as file:
        file.seek(summary.offset)
        row = orjson.loads(file.read(summary.length))
    credit = Credit(summary.advantage, summary.turn_advantages)
    return EpisodeRecord(
        episode=read_episode_row(row["episode"]),
        trajectories=read_trajectory_rows(row["trajectories"]),
        dropped=_reason(row["dropped"]),
        version=row["version"],
        split=row["split"],
        time=row["time"],
        step=summary.step,
        credit=None if summary.step is None else credit,
    )


def _summary_row(episode: Episode, *, dropped: DropReason | None, split: str) -> dict[str, Any]:
    """The fields of an `EpisodeSummary` that the episode itself has."""
    outcome = episode.outcome
    return {
        "id": episode.id,
        "task_id": episode.task.id,
        "group": episode.group,
        "split": split,
        "reward": outcome.reward,
        "success": outcome.success,
        "dropped": dropped,
        "error": outcome.message if outcome.kind is OutcomeKind.ERROR else None,
        "num_turns": len(episode.turns),
        "num_tokens": sum(len(turn.output_tokens) for turn in episode.turns),
        "duration_s": episode.duration_s,
        "text": _beginning(episode),
    }


def _marks(row: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The fields of a summary that a step knows of each episode that it trained."""
    return {
        name: {"step": row["trained"], "advantage": advantage, "turn_advantages": by_turn}
        for name, (advantage, by_turn) in row["credit"].items()
    }


def _beginning(episode: Episode) -> str:
    """The beginning of the last answer: what it says, else what it calls."""
    message = episode.turns[-1].message if episode.turns else {}
    calls = [call.get("function", {}) for call in message.get("tool_calls") or ()]
    called = (f"-> {call.get('name')}({call.get('arguments', '')})" for call in calls)
    text = message.get("content") or " ".join(called)
    return " ".join(str(text)[: 4 * TEXT_LENGTH].split())[:TEXT_LENGTH]


def _reason(name: str | None) -> DropReason | None:
    return DropReason(name) if name else None
