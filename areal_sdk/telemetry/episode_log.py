"""The episodes of a run on disk: appended as they end, found by id.

`episode_files` says how records and their index are stored. Evaluations have files of their own, so that a long run
does not push out what was measured before it. Each step adds two lines to the index, after the lines of the episodes
that it trained: one says which groups are still waiting in the state that a checkpoint of this step holds, the other
names the episodes. A resume adds a line with the step after which it goes on. Episodes that were not trained by then
are played again.
"""

import heapq
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import orjson

from areal_sdk.errors import StorageError
from areal_sdk.telemetry.episode_files import (
    FILE_BYTES,
    INDEX,
    RECORDS,
    EpisodeFiles,
    count_deleted,
    file_stems,
    pack_large,
    read_lines,
    read_record,
    unpacked,
)
from areal_sdk.telemetry.episode_index import (
    EpisodeSummary,
    checked,
    marks_of,
    summary_of,
    summary_row,
)
from areal_sdk.telemetry.episode_rows import (
    episode_row,
    read_episode_row,
    read_trajectory_rows,
    trajectory_rows,
)
from areal_sdk.telemetry.files import read_json_lines, to_json
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.trajectory import Credit, Trajectory
from areal_sdk.types import Episode

LEARNT = ("train", "live")
"""The splits that runs learn from. Episodes of all others are evaluations."""
_PLAYED, _MEASURED = "", "eval-"
"""Prefixes of the files of episodes that are learnt from, and of evaluations."""


@dataclass(frozen=True, slots=True)
class EpisodeRecord:
    """An episode as the run saw it end."""

    episode: Episode
    trajectories: tuple[Trajectory, ...] = ()
    """The trained sequences: tokens, loss masks, versions."""
    dropped: DropReason | str | None = None
    """The reason why the episode was dropped; plain text if a newer version of the SDK wrote it."""
    version: int | None = None
    """The policy version when the episode ended."""
    split: str = "train"
    time: float = 0.0
    """Unix time when the episode was written."""
    step: int | None = None
    """The step that trained the episode. Only readers know it: a writer leaves None."""
    credit: Credit | None = None
    """The advantages that `step` gave the episode."""
    is_undone: bool = False
    """Whether a resume undid the episode, by going on before the step that trained it, or before it ended. It is then
    no part of the run."""


@dataclass(frozen=True, slots=True)
class PreparedRecord:
    """An episode as the writer appends it. Any process can `prepare` it, so that the main process need not."""

    record: bytes
    index: bytes
    """A JSON object without the fields that only the writer knows, and without its closing brace."""
    split: str = "train"

    @property
    def episode(self) -> Mapping[str, Any]:
        """The row of the episode."""
        row: Mapping[str, Any] = orjson.loads(unpacked(self.record))["episode"]
        return row


def prepare(
    episode: Episode,
    *,
    trajectories: Sequence[Trajectory] = (),
    dropped: DropReason | None = None,
    split: str = "train",
) -> PreparedRecord:
    """The record of an episode, for `EpisodeWriter.append`."""
    record = {
        "episode": episode_row(episode),
        "trajectories": trajectory_rows(trajectories, episode),
    }
    index = summary_row(episode, dropped=dropped, split=split)
    return PreparedRecord(pack_large(to_json(record)), to_json(index)[:-1], split)


class EpisodeWriter:
    """Appends episodes to a directory. One writer per run; any number of readers, live."""

    def __init__(
        self,
        directory: Path,
        *,
        keep_bytes: float = math.inf,
        file_bytes: int = FILE_BYTES,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Delete the oldest episodes if more than `keep_bytes` are written, and tell `say` once. Evaluations are
        counted apart."""

        def files_of(prefix: str, what: str) -> EpisodeFiles:
            told = (
                f"its {what} fill {keep_bytes / 1e9:g} GB (run.keep_episodes): from now on the oldest "
                "are deleted"
            )
            return EpisodeFiles(
                directory,
                prefix=prefix,
                keep_bytes=keep_bytes,
                file_bytes=file_bytes,
                on_first_deleted=lambda: say(told),
            )

        self._played = files_of(_PLAYED, "episodes")
        self._measured = files_of(_MEASURED, "evaluations")

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
        """Append one episode, and its line to the index. `measures` is the step after which an evaluation played it."""
        record = prepare(episode, trajectories=trajectories, dropped=dropped, split=split)
        self.append(record, version=version, measures=measures)

    def append(
        self, record: PreparedRecord, *, version: int | None, measures: int | None = None
    ) -> None:
        """Append an episode that `prepare` made ready. `version` is the policy's version when the episode ended."""
        now = {"version": version, "time": time.time(), "measures": measures}
        known = to_json({name: value for name, value in now.items() if value is not None})
        files = self._played if record.split in LEARNT else self._measured
        files.append(record.record, record.index + b"," + known[1:-1])

    def mark_taken(self, step: int, *, waiting: Sequence[str]) -> None:
        """Note the groups that are not consumed in the state after `step`: a resume plays them again."""
        self._played.note({"taken": step, "waiting": waiting})

    def mark_resumed(self, step: int | None, *, plays_again: bool = True) -> None:
        """Note that the run goes on after `step`; None: it begins anew. `plays_again`: episodes that were not trained
        by then are played again."""
        for files in (self._played, self._measured):
            if not files.is_empty:
                # What was measured before the first step is measured again as well.
                files.note({"resumed": step or -1, "plays_again": plays_again})

    def mark_trained(self, credit: Mapping[str, Credit], *, step: int) -> None:
        """Note which episodes `step` trained: each by its id, with the values that the step gave it."""
        if credit:
            marks = {name: [c.advantage, c.by_turn] for name, c in credit.items()}
            self._played.note({"trained": step, "credit": marks})

    def mark_dropped(self, reason: DropReason, ids: Sequence[str]) -> None:
        """Note that these episodes, which waited for a step, are dropped after all."""
        self._played.note({"drops": reason, "ids": ids})

    def close(self) -> None:
        self._played.close()
        self._measured.close()


def list_episodes(
    directory: Path,
    *,
    until: Mapping[str, int] | None = None,
    on_unreadable: Callable[[Any], object] = lambda line: None,
) -> Iterator[EpisodeSummary]:
    """The episodes in `directory`, newest first, without those that a resume undid.

    `until`: bytes of each index that are read, by its file's name without suffix; an index that is not named is not
    read. `on_unreadable` is given each line that this version cannot read.
    """
    found = _all_episodes(directory, until=until, on_unreadable=on_unreadable)
    return (summary for summary, is_undone in found if not is_undone)


def find_episode(directory: Path, episode_id: str) -> EpisodeRecord | None:
    """The newest episode whose id is `episode_id`. One that a resume undid is found only if there is no other."""
    undone: EpisodeSummary | None = None
    for summary, is_undone in _all_episodes(directory, about=episode_id):
        if summary.id != episode_id:
            continue
        if not is_undone:
            return read_episode(directory, summary)
        undone = undone or summary
    return None if undone is None else replace(read_episode(directory, undone), is_undone=True)


@dataclass(slots=True)
class _Undoing:
    """The undone part of a run, for a reader that goes from the newest line to the oldest."""

    after: float = math.inf
    """Last step that counts, of all lines older than the resumes that the reader has met."""
    in_checkpoint: bool = True
    """Whether the lines older than the one just read were written before the checkpoint that was resumed."""
    waiting: set[str] = field(default_factory=set)
    """The groups that were not consumed in the resumed checkpoint."""
    plays_again: bool = True
    """Whether a resumed run plays undone episodes again. A run that learns from callers cannot: callers' episodes stay."""

    def meet(self, line: Mapping[str, Any]) -> None:
        """Read a line that belongs to no episode."""
        if "resumed" in line:
            self.after = min(self.after, line["resumed"])
            self.in_checkpoint = False
            self.plays_again = line.get("plays_again", True)
        elif "taken" in line and line["taken"] <= self.after and not self.in_checkpoint:
            self.in_checkpoint = True
            self.waiting.update(line["waiting"])
        elif "trained" in line and line["trained"] < self.after:
            self.in_checkpoint = True  # older runs do not say what waited

    def undoes(self, row: Mapping[str, Any], step: int | None) -> bool:
        """Whether a resume undid the episode, so that the run played or measured it again."""
        if row["split"] == "train" and not self.plays_again:
            return False
        if row["split"] == "train" and step is None:
            return not self.in_checkpoint or row["group"] in self.waiting
        if row["split"] == "train":
            return self.is_undone(step)
        return self.is_undone(row.get("measures"))

    def is_undone(self, step: int | None) -> bool:
        return step is not None and step > self.after


def _all_episodes(
    directory: Path,
    *,
    about: str | None = None,
    until: Mapping[str, int] | None = None,
    on_unreadable: Callable[[Any], object] = lambda line: None,
) -> Iterator[tuple[EpisodeSummary, bool]]:
    """The episodes, newest first, and whether a resume undid each. With `about`, other ids may be left out."""
    logs = [
        _episodes_of(directory, prefix, about, until, on_unreadable)
        for prefix in (_PLAYED, _MEASURED)
    ]
    return heapq.merge(*logs, key=lambda found: -found[0].time)


def _episodes_of(
    directory: Path,
    prefix: str,
    about: str | None,
    until: Mapping[str, int] | None,
    on_unreadable: Callable[[Any], object],
) -> Iterator[tuple[EpisodeSummary, bool]]:
    marks: dict[str, dict[str, Any]] = {}  # those of episodes that are yet to come
    undoing = _Undoing()
    for stem in reversed(file_stems(directory, prefix)):
        size = None if until is None else until.get(stem, 0)
        for line in read_lines(directory / f"{stem}{INDEX}", about=about, until=size):
            row = checked(line)
            if row is None:
                on_unreadable(line)
            elif "id" not in row:
                undoing.meet(row)
                for name, mark in marks_of(row).items():
                    if about in (None, name):
                        marks.setdefault(name, mark)  # a newer mark counts
            else:
                mark = marks.pop(row["id"], {})  # an older episode of this id has its own mark
                is_undone = undoing.undoes(row, mark.get("step"))
                if not is_undone and undoing.is_undone(mark.get("step")):
                    mark = {}  # a caller's episode, which no step of the run has trained
                yield summary_of(row, mark, file=f"{stem}{RECORDS}"), is_undone


def read_appended(
    directory: Path,
    since: Mapping[str, int],
    until: Mapping[str, int],
    *,
    on_unreadable: Callable[[Any], object] = lambda line: None,
) -> Iterator[EpisodeSummary | tuple[str, dict[str, Any]] | None]:
    """Yield, in order, the content of the index lines between two sizes of the files. A line gives a new episode, or ids
    of earlier ones with changed fields: a step's values, a drop. None stands for a resume, which may undo earlier lines."""
    for prefix in (_PLAYED, _MEASURED):
        for stem in file_stems(directory, prefix):
            start = since.get(stem, 0)
            for end, line in read_json_lines(directory / f"{stem}{INDEX}", offset=start):
                if end > until.get(stem, 0):
                    break
                row = checked(line)
                if row is None:
                    on_unreadable(line)
                elif "id" in row:
                    yield summary_of(row, {}, file=f"{stem}{RECORDS}")
                elif "resumed" in row:
                    yield None
                else:
                    yield from marks_of(row).items()


def growing_files(directory: Path) -> set[str]:
    """The names, without suffix, of the files to which a running run appends episodes now."""
    logs = (file_stems(directory, prefix) for prefix in (_PLAYED, _MEASURED))
    return {stems[-1] for stems in logs if stems}


def num_deleted(directory: Path) -> int:
    """The number of episodes that were deleted to make room, evaluations included."""
    return sum(count_deleted(directory, prefix) for prefix in (_PLAYED, _MEASURED))


def read_text(directory: Path, summary: EpisodeSummary) -> bytes:
    """The record of the episode as JSON. StorageError if its file is gone, damaged, or a link to another place."""
    file = directory / summary.file
    if not file.resolve().is_relative_to(directory.resolve()):
        raise StorageError(f"{file} leads out of its run: put a copy of the file in its place")
    return read_record(file, summary.offset, summary.length)


def read_episode(directory: Path, summary: EpisodeSummary) -> EpisodeRecord:
    """The full record of the episode that `summary` describes. StorageError if this version cannot read it."""
    text = read_text(directory, summary)
    credit = Credit(summary.advantage, summary.turn_advantages)
    try:
        row = orjson.loads(text)
        episode = read_episode_row(row["episode"])
        trajectories = read_trajectory_rows(row["trajectories"], episode)
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as exc:
        raise StorageError(f"the record of episode {summary.id!r} is not readable: {exc}") from exc
    return EpisodeRecord(
        episode=episode,
        trajectories=trajectories,
        dropped=summary.dropped,
        version=summary.version,
        split=summary.split,
        time=summary.time,
        step=summary.step,
        credit=None if summary.step is None else credit,
    )
