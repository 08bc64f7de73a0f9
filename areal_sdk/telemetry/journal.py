"""The answers of episodes that no step has trained yet, so that a resumed run goes on with them where they were.

    open/<task and epoch>-<sibling>.log      one file per episode, one line per answer of the model

A line has a checksum and JSON: how the answer was asked for, the new part of its prompt, tokens, logprobs and versions,
as sampled. A thread writes the lines, so that no episode waits for a disk. A file goes when the task of its episode is
consumed. A line that a crash has torn counts as never written; a file with any other damage is named, and its episode
begins anew.
"""

import logging
import math
import os
import queue
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any
from zlib import crc32

import orjson

from areal_sdk.telemetry.files import PRIVATE_DIRECTORY, private, to_json, write_atomically
from areal_sdk.types import FinishReason, Turn

logger = logging.getLogger(__name__)

FORMAT = 1
MAX_WAITING = 10_000
"""Maximum number of answers that wait for the disk. Further ones are not kept."""
_SUFFIX = ".log"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer of the model, and the request that it answers."""

    asked: str
    """Digest of how the answer was asked for: limits, sampling, stops."""
    turn: Turn
    """Prompt, tokens, logprobs and versions. `shares_with` is the place of another answer in the file."""
    stop_matched: str | int | None = None
    top_logprobs: tuple[Mapping[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """The name of an episode, which it has again after a resume."""

    epoch: int
    task_id: str
    sibling: int

    @property
    def stem(self) -> str:
        return f"{_task_stem(self.epoch, self.task_id)}-{self.sibling}"


@dataclass(frozen=True, slots=True)
class Restored:
    """The episodes with which a resumed run can go on."""

    keys: tuple[EpisodeKey, ...] = ()
    num_answers: int = 0
    num_too_old: int = 0
    """Episodes whose first answer came from weights too far from those of the checkpoint."""


class Journal:
    """The journal of one process, from `start` to `close`. Only the main process restores and forgets.

    Losing a line costs a resumed run some answers, so a write that fails ends neither an episode nor the run. Methods
    that read the disk, and `close`, block.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._work: queue.Queue[Callable[[], None] | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self._is_off = False
        self._recorded: set[str] = set()
        """Stems of the files that were there at the start."""

    def start(self) -> None:
        self.directory.mkdir(PRIVATE_DIRECTORY, exist_ok=True)
        self._recorded = {path.stem for path in self.directory.glob(f"*{_SUFFIX}")}
        self._thread.start()

    def close(self) -> None:
        """Write the answers that wait for the disk."""
        self._work.put(None)
        self._thread.join()

    def restore(self, *, version: int, max_staleness: int) -> Restored:
        """The episodes on disk, as a run that goes on at `version` may use them.

        A version after `version` was lost with its step. A token of `version + n` counts as `n` versions old, since its
        weights are `n` updates away from those of `version`. The record of an episode ends before the first answer
        with a token older than `max_staleness`.
        """
        keys, num_answers, num_too_old = [], 0, 0
        found, self._recorded = sorted(self._recorded), set()
        for stem in found:
            path = self._path(stem)
            read = _read(path)
            if read is None:
                continue
            key, answers = read
            kept = _as_of(answers, version=version, max_staleness=max_staleness)
            if not kept:
                num_too_old += bool(answers)
                path.unlink()
                continue
            if kept != answers:
                lines = [_line(_header(key)), *(_line(_row(answer)) for answer in kept)]
                write_atomically(path, b"".join(lines))
            self._recorded.add(stem)
            keys.append(key)
            num_answers += len(kept)
        return Restored(tuple(keys), num_answers, num_too_old)

    def is_recorded(self, key: EpisodeKey) -> bool:
        """Whether `read` may find answers of the episode."""
        return key.stem in self._recorded

    def read(self, key: EpisodeKey) -> list[Answer]:
        """The recorded answers of an episode; none if it was not open when the run stopped."""
        self._recorded.discard(key.stem)
        read = _read(self._path(key.stem))
        return [] if read is None else read[1]

    def keep(self, key: EpisodeKey, answer: Answer, is_first: bool) -> bool:
        """Append an answer; returns whether that was possible. `is_first` begins the file of the episode anew."""

        def append() -> None:
            with open(self._path(key.stem), "wb" if is_first else "ab", opener=private) as file:
                file.write((_line(_header(key)) if is_first else b"") + _line(_row(answer)))

        return self._later(append)

    def forget(self, key: tuple[int, str]) -> None:
        """Delete the records of the episodes of a task, an epoch and an id, because it is consumed."""
        stem = _task_stem(*key)

        def delete() -> None:
            for path in self.directory.glob(f"{stem}-*{_SUFFIX}"):
                path.unlink(missing_ok=True)

        self._later(delete)

    # --- internals -----------------------------------------------------------------------------

    def _path(self, stem: str) -> Path:
        return self.directory / f"{stem}{_SUFFIX}"

    def _later(self, work: Callable[[], None]) -> bool:
        if self._is_off:
            return False
        try:
            self._work.put_nowait(work)
        except queue.Full:
            self._turn_off(f"{MAX_WAITING} of them wait for the disk")
        return not self._is_off

    def _turn_off(self, why: object) -> None:
        if not self._is_off:
            self._is_off = True
            logger.warning(
                "the answers of open episodes are kept no longer (%s): after a resume they are replayed only up to "
                "here",
                why,
            )

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except OSError as exc:
                self._turn_off(exc)


def _task_stem(epoch: int, task_id: str) -> str:
    name = f"{epoch} {task_id}".encode("utf-8", "surrogatepass")
    return blake2b(name, digest_size=12).hexdigest()


def _as_of(answers: Sequence[Answer], *, version: int, max_staleness: int) -> list[Answer]:
    """The answers that a run may use that goes on at `version`: all before the first that is too old."""
    kept: list[Answer] = []
    for answer in answers:
        turn = answer.turn
        if max(turn.versions, default=version) > version:
            versions = tuple(version - abs(version - one) for one in turn.versions)
            turn = replace(turn, versions=versions)
        if version - min(turn.versions, default=version) > max_staleness:
            break
        if (place := turn.shares_with) is not None:
            turn = replace(turn, _before=kept[place].turn)
        kept.append(replace(answer, turn=turn))
    return kept


# --- lines -------------------------------------------------------------------------------------


def _header(key: EpisodeKey) -> dict[str, Any]:
    return {"format": FORMAT, "epoch": key.epoch, "task": key.task_id, "sibling": key.sibling}


def _row(answer: Answer) -> dict[str, Any]:
    turn = answer.turn
    row: dict[str, Any] = {
        "asked": answer.asked,
        "shares_with": turn.shares_with,
        "num_shared": turn.num_shared,
        "new": turn.new_tokens,
        "output": turn.output_tokens,
        # JSON has no NaN, by which some servers say that they know no logprob.
        "logprobs": array("d", turn.logprobs).tobytes().hex(),
        "versions": turn.versions,
        "finish": turn.finish_reason,
        "stop": answer.stop_matched,
        "num_stale_kv": turn.num_stale_kv,
    }
    if answer.top_logprobs:
        row["top_logprobs"] = [[*tops.items()] for tops in answer.top_logprobs]
    return row


def _line(row: Mapping[str, Any]) -> bytes:
    text = to_json(row)
    return b"%08x %s\n" % (crc32(text), text)


def _read(path: Path) -> tuple[EpisodeKey, list[Answer]] | None:
    """The episode of a file and its answers; None if there are none. A damaged file is deleted, with a warning."""
    try:
        data = path.read_bytes()
        *lines, torn = data.split(b"\n")
        if torn:
            os.truncate(path, len(data) - len(torn))
        if not lines:
            return None
        return _parsed(lines)
    except (OSError, ValueError, LookupError, TypeError) as exc:
        logger.warning("%s is damaged (%s): its episode begins anew", path, exc)
        path.unlink(missing_ok=True)
        return None


def _parsed(lines: Sequence[bytes]) -> tuple[EpisodeKey, list[Answer]]:
    header, *rows = (_checked(number, line) for number, line in enumerate(lines, start=1))
    if header["format"] != FORMAT:
        raise ValueError(f"its format is {header['format']}, this version reads {FORMAT}")
    answers: list[Answer] = []
    for row in rows:
        place = row["shares_with"]
        turn = Turn(
            new_tokens=tuple(row["new"]),
            output_tokens=tuple(row["output"]),
            logprobs=tuple(array("d", bytes.fromhex(row["logprobs"]))),
            versions=tuple(row["versions"]),
            finish_reason=FinishReason(row["finish"]),
            num_stale_kv=row["num_stale_kv"],
            num_shared=row["num_shared"],
            shares_with=place,
            _before=None if place is None else answers[place].turn,
        )
        tops = tuple(
            {token: -math.inf if logprob is None else logprob for token, logprob in pairs}
            for pairs in row.get("top_logprobs", ())
        )
        answers.append(Answer(row["asked"], turn, row["stop"], tops))
    return EpisodeKey(header["epoch"], header["task"], header["sibling"]), answers


def _checked(number: int, line: bytes) -> dict[str, Any]:
    checksum, _, text = line.partition(b" ")
    if checksum != b"%08x" % crc32(text):
        raise ValueError(f"line {number} does not have its checksum")
    row: dict[str, Any] = orjson.loads(text)
    return row
