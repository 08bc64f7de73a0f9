"""The record of each token in training: one file per step, `tokens/step-000012.npz`.

A step counts the tokens that its groups train. A file has a column for each kind of number, with one value for each
counted token, in the order of `StepTokens.sequences`. `numpy.load` opens it too: the column `about` is JSON.

Numbers of the model are stored as distances of logprobs, in half precision: a relative 0.05 % of a distance is lost,
and of a logprob that is 0.01 from the sampler's no more than 0.000005. A distance of 65,504 or more reads as
infinite. Advantages are not rounded. A column that follows from other columns is left out.
"""

import io
import math
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import IntFlag
from pathlib import Path
from typing import Any, Self

import numpy as np
import orjson
from numpy.typing import NDArray

from areal_sdk.errors import StorageError
from areal_sdk.telemetry.files import to_json, write_atomically

JSON = Any
Column = NDArray[Any]

SUFFIX = ".npz"
ABOUT = "about"
_LEVEL = 1
"""Level of zlib: most of a file is digits of logprobs, which higher levels do not make smaller."""


class TokenFlag(IntFlag):
    """The fate of a token in a step. 0: the step did not count it."""

    COUNTED = 1
    """The token is in the divisor of its minibatch."""
    TERM = 2
    """The token has a term in the loss. A counted token without a term has an advantage of 0, and no gradient."""
    CLIPPED_LOW = 4
    """The trust region holds the term back, since its ratio was too low already."""
    CLIPPED_HIGH = 8
    """The trust region holds the term back, since its ratio was too high already."""
    CLIPPED_DUAL = 16
    """The loss of the term is at its upper bound (`dual_clip`)."""
    BOUNDED = 32
    """The importance weight is beyond its maximum."""
    MASKED = 64
    """The term weighs nothing, since its importance weight is beyond the maximum."""
    SCREENED = 128
    """The objective compared all terms of the minibatch, and removed this one as too far from the sampler."""


COLUMNS: Mapping[str, type[np.generic]] = {
    "flags": np.uint8,
    "advantage": np.float32,
    "proximal_minus_behaviour": np.float16,
    "train_minus_proximal": np.float16,
    "log_ratio": np.float16,
    "log_weight": np.float16,
    "loss": np.float16,
    "entropy": np.float16,
    "train_minus_reference": np.float16,
    "value": np.float16,
    "target": np.float16,
}
"""The columns of a file and their types there.

* `flags`: a `TokenFlag`.
* `advantage`: known of every counted token. All columns below are NaN for a token without a term.
* `proximal_minus_behaviour`: the logprob at the centre of the trust region, minus the sampler's.
* `train_minus_proximal`, `train_minus_reference`: the trainer's logprob, when it computed the loss, minus that at the centre, and
  minus that of the reference. Readers also get `train_minus_behaviour`.
* `log_ratio`: the logarithm of the ratio that the trust region judged; left out where it is `train_minus_proximal`.
* `log_weight`: the logarithm of the importance weight as it was used, -inf for none; left out where it is
  `proximal_minus_behaviour`.
* `loss`: the term before `weight` and divisor.
* `entropy`: of the distribution that the token was drawn from.
* `value`, `target`: the critic's value of the token's state, and the return that it learns.
"""


GATHERED = tuple(name for name in COLUMNS if name != "advantage")
"""The columns that the ranks gather: every rank knows all advantages."""


@dataclass(frozen=True, slots=True)
class CountedMinibatch:
    """One optimiser update of a step."""

    divisor: float
    """The divisor of the sum of the minibatch's weighted terms."""
    is_applied: bool
    """Whether the update was made. Else its gradient was not finite."""
    share: float = 1.0
    """Share of the update that the trust region left: 0 if the update was taken back as a whole, 1 if it was not
    measured, as in records of earlier versions."""


@dataclass(frozen=True, slots=True)
class CountedGroup:
    id: str
    task_id: str
    minibatch: int | None
    """Index of the minibatch that the group is part of; None if that minibatch had no term."""


@dataclass(frozen=True, slots=True)
class CountedSequence:
    """A trajectory as the step counted it."""

    episode_id: str
    group: int
    """Index of the episode's group."""
    reward: float
    """The reward as the estimator saw it, after shaping."""
    weight: float
    """The factor of each of its terms in the loss (`aggregation`)."""
    runs: tuple[tuple[int, int, int], ...]
    """The stretches of counted tokens, each as its turn, its first place in the turn's prompt and output, and its length."""

    @property
    def num_tokens(self) -> int:
        return sum(count for _, _, count in self.runs)


@dataclass(frozen=True, slots=True, eq=False)
class StepTokens:
    """The record of the tokens that a step counted."""

    version: int
    """The version that the step began with."""
    minibatches: tuple[CountedMinibatch, ...]
    groups: tuple[CountedGroup, ...]
    sequences: tuple[CountedSequence, ...]
    columns: Mapping[str, Column]
    """The columns by name, in single precision. A column is missing if the trainer does not know its numbers."""

    @property
    def num_tokens(self) -> int:
        return sum(sequence.num_tokens for sequence in self.sequences)

    def spans(self, episode_id: str) -> list[tuple[CountedSequence, slice]]:
        """The sequences of an episode, each with its place in the columns."""
        found, start = [], 0
        for sequence in self.sequences:
            stop = start + sequence.num_tokens
            if sequence.episode_id == episode_id:
                found.append((sequence, slice(start, stop)))
            start = stop
        return found

    def about(self) -> JSON:
        """The record without its columns, as JSON."""
        parts = ("minibatches", "groups", "sequences")
        return {"version": self.version} | {
            name: [asdict(part) for part in getattr(self, name)] for name in parts
        }

    @classmethod
    def of(cls, about: JSON, columns: Mapping[str, Column]) -> Self:
        """The record of what `about` returned, with these columns."""
        return cls(
            about["version"],
            tuple(CountedMinibatch(**row) for row in about["minibatches"]),
            tuple(CountedGroup(**row) for row in about["groups"]),
            tuple(
                CountedSequence(**{**row, "runs": tuple(map(tuple, row["runs"]))})
                for row in about["sequences"]
            ),
            columns,
        )


_GIVEN = {"log_ratio": "train_minus_proximal", "log_weight": "proximal_minus_behaviour"}
"""Columns that a file leaves out if they equal another one, each with the other's name."""


def stored(columns: Mapping[str, Column]) -> dict[str, Column]:
    """The columns as a file has them: rounded, and without those that equal another one (`_GIVEN`)."""
    kept = {}
    with np.errstate(over="ignore"):
        for name, column in columns.items():
            same = columns.get(_GIVEN.get(name, ""))
            is_given = same is not None and np.array_equal(same, column, equal_nan=True)
            if name in COLUMNS and not is_given:
                kept[name] = np.asarray(column).astype(COLUMNS[name])
    return kept


def whole(kept: Mapping[str, Column]) -> dict[str, Column]:
    """The columns of a file in single precision, together with the columns that the file leaves out."""
    columns = {
        name: column if name == "flags" else column.astype(np.float32)
        for name, column in kept.items()
    }
    columns |= {
        name: columns[same]
        for name, same in _GIVEN.items()
        if name not in columns and same in columns
    }
    if {*_GIVEN.values()} <= columns.keys():
        with np.errstate(invalid="ignore"):  # a policy that diverged
            moved, away = columns["train_minus_proximal"], columns["proximal_minus_behaviour"]
            columns["train_minus_behaviour"] = away + moved
    return columns


class TokenWriter:
    """Writes the tokens of a run's steps. One writer per run; any number of readers, live."""

    def __init__(self, directory: Path, *, keep_bytes: float = math.inf) -> None:
        """Delete the oldest steps when more than `keep_bytes` are written; nothing is written if that is 0."""
        self._directory = directory
        self._keep_bytes = keep_bytes

    def write(self, step: int, tokens: StepTokens) -> None:
        """Write the file of `step`, in place of an existing one."""
        if not self._keep_bytes:
            return
        path = file_of(self._directory, step)
        self._directory.mkdir(0o700, parents=True, exist_ok=True)
        write_atomically(path, _packed(tokens))
        sizes = {old: size for old in steps_in(self._directory) if (size := self._size(old))}
        total = sum(sizes.values())
        for old, size in sizes.items():
            if total <= self._keep_bytes or old >= step:
                break
            file_of(self._directory, old).unlink(missing_ok=True)
            total -= size

    def forget_after(self, step: int) -> None:
        """Delete the steps after `step`: a run that goes on from there takes them again."""
        for taken in steps_in(self._directory):
            if taken > step:
                file_of(self._directory, taken).unlink(missing_ok=True)
        for torn in self._directory.glob(".step-*.tmp"):  # a process was killed while it wrote
            torn.unlink(missing_ok=True)

    def _size(self, step: int) -> int:
        with suppress(FileNotFoundError):
            return file_of(self._directory, step).stat().st_size
        return 0


def file_of(directory: Path, step: int) -> Path:
    return directory / f"step-{step:06d}{SUFFIX}"


def steps_in(directory: Path) -> list[int]:
    """The steps that have a file, oldest first."""
    names = (re.fullmatch(r"step-(\d+)", path.stem) for path in directory.glob(f"step-*{SUFFIX}"))
    return sorted(int(name[1]) for name in names if name)


def read_tokens(directory: Path, step: int) -> StepTokens | None:
    """The tokens of a step; None if the step has no file."""
    path = file_of(directory, step)
    try:
        with np.load(path, allow_pickle=False) as file:
            kept = dict(file)
        about = orjson.loads(kept.pop(ABOUT).tobytes())
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, EOFError, OSError, zlib.error, zipfile.BadZipFile) as exc:
        raise StorageError(
            f"{path} is damaged ({exc}): restore it from a copy, or delete it"
        ) from exc
    return StepTokens.of(about, whole(kept))


def _packed(tokens: StepTokens) -> bytes:
    packed = io.BytesIO()
    about = np.frombuffer(to_json(tokens.about()), np.uint8)
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=_LEVEL) as archive:
        for name, column in {ABOUT: about, **stored(tokens.columns)}.items():
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array(member, column, allow_pickle=False)
    return packed.getvalue()


def runs_of(
    turns: Sequence[int] | Column, places: Sequence[int] | Column
) -> tuple[tuple[int, int, int], ...]:
    """The stretches of neighbouring tokens of one turn: (turn, first place, number of tokens).

    >>> runs_of([0, 0, 0, 2], [5, 6, 8, 9])
    ((0, 5, 2), (0, 8, 1), (2, 9, 1))
    """
    turns, places = np.asarray(turns), np.asarray(places)
    if not len(turns):
        return ()
    breaks = np.flatnonzero((np.diff(turns) != 0) | (np.diff(places) != 1)) + 1
    starts = [0, *breaks.tolist()]
    stops = [*starts[1:], len(turns)]
    return tuple(
        (int(turns[start]), int(places[start]), stop - start)
        for start, stop in zip(starts, stops, strict=True)
    )
