"""The best weights of a run, in `checkpoints/best`: how they are chosen and kept.

Only an evaluation that measured the exported weights from its first token to its last can choose the
best ones: `best` then holds the weights that were measured. During training the weights may change
under an evaluation. If such an evaluation looks best, the weights that it began with wait in
`checkpoints/waiting`, and are measured again when the run ends.
"""

import math
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.telemetry.files import to_json, write_atomically
from areal_sdk.telemetry.run_dir import BEST, MEASURED_FILE, WAITING, read_measured

REASONS = ("", "success", "verdicts", "reward", "order")
"""Reasons why one measurement beats another, in the order in which they are asked."""

MAX_UNJUDGED = 0.1
"""Difference between two shares of judged episodes up to which the rewards decide. Beyond it, the larger share wins."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurement of exported weights. Stored beside the weights."""

    step: int
    """The step that made the weights."""
    success: float
    reward: float | None
    """Mean reward; None if an earlier version of areal-sdk stored only the success."""
    from_version: int
    """Version of the weights when the measurement began. The engine may have had later ones at its end."""
    to_version: int
    by: str = ""
    """The reason why these weights are the best: `success`; `reward`, if the success is equal or says nothing;
    `verdicts`, if more of their episodes have one; `order`, if all of these are equal. Empty for the first weights."""
    solved: float | None = None
    """Success over all episodes, those without a verdict included; None: equal to `success`."""
    judged: float = 1.0
    """Share of the episodes that have a verdict."""
    is_in_points: bool = False
    """Whether rewards are points: a reward of 1 is then a low score, and success says nothing."""
    measure: Mapping[str, Any] = field(default_factory=dict)
    """The tasks and settings of the measurement: tasks, samples, temperature, limits. Empty: an earlier version did
    not store it."""

    @classmethod
    def of(
        cls, report: EvalReport, *, step: int, measure: Mapping[str, Any] | None = None
    ) -> Self | None:
        """The measurement of a report; None if nothing was scored."""
        if report.success is None or report.reward is None:
            return None
        first, last = report.versions or (step, step)
        return cls(
            step,
            report.success.value,
            report.reward.value,
            first,
            last,
            solved=report.solved,
            judged=report.judged,
            is_in_points=report.is_in_points,
            measure=measure or {},
        )

    @classmethod
    def read(cls, exported: Path) -> Self | None:
        """The scores that were stored beside `exported`; None if there are none."""
        values = read_measured(exported)
        if values is None:
            return None
        first = values.get("from_version", values["step"])
        return cls(
            values["step"],
            values["success"],
            values.get("reward"),
            first,
            values.get("to_version", first),
            values.get("by", ""),
            values.get("solved"),
            values.get("judged", 1.0),
            values.get("is_in_points", False),
            values.get("measure", {}),
        )

    @property
    def is_exact(self) -> bool:
        """Whether only the exported weights were measured, and no later ones."""
        return self.from_version == self.to_version == self.step

    def is_better_than(self, other: "Measured | None") -> bool:
        """Whether these weights are better by the measure that tells them apart (`decided_by`).

        If success, verdicts and rewards are equal, the weights of the later step are better, because they learnt more.
        Measurements of different kinds cannot be compared: then these weights count as better.
        """
        if other is None or not self.is_comparable_to(other):
            return True
        by = self.decided_by(other)
        return self._score(by) > other._score(by)

    def is_comparable_to(self, other: "Measured") -> bool:
        """Whether both were measured on the same tasks and in the same way."""
        return not self.measure or not other.measure or self.measure == other.measure

    def decided_by(self, other: "Measured") -> str:
        """The measure that tells the two apart: `success`, `verdicts` or `reward`; else their `order`."""
        says_something = not (self.is_in_points or other.is_in_points)
        if says_something and self._score("success") != other._score("success"):
            return "success"
        if abs(self.judged - other.judged) > MAX_UNJUDGED:
            return "verdicts"
        return "reward" if self._score("reward") != other._score("reward") else "order"

    def _score(self, by: str) -> float:
        match by:
            case "success":
                return self.success if self.solved is None else self.solved
            case "verdicts":
                return self.judged
            case "order":
                return self.step
            case _:
                return -math.inf if self.reward is None else self.reward

    def to_json(self) -> Mapping[str, Any]:
        return asdict(self)


class BestWeights:
    """The exported weights that a run keeps for its evaluations. Blocks while it moves directories."""

    def __init__(self, checkpoints: Path) -> None:
        """Continue from the weights on disk, which may be newer than the latest checkpoint."""
        self.waiting_dir = checkpoints / WAITING
        self._best_dir = checkpoints / BEST
        for kept in (self._best_dir, self.waiting_dir):
            _recover(kept)
        for leftover in checkpoints.glob(_candidate("*")):
            shutil.rmtree(leftover, ignore_errors=True)
        self.best = Measured.read(self._best_dir)
        self.waiting = Measured.read(self.waiting_dir)
        """The measurement of weights that looked better than the best, but changed while they were measured."""

    def candidate_dir(self, step: int) -> Path:
        """The directory for the export of the weights with which an evaluation begins."""
        return self._best_dir.with_name(_candidate(f"{step:06d}"))

    def offer(self, exported: Path, measured: Measured | None) -> None:
        """Keep `exported` if it is, or may be, the best. The directory `exported` is gone afterwards. `measured` is
        None if nothing was scored. To offer the waiting weights, pass `waiting_dir`."""
        if exported == self.waiting_dir:
            self.waiting = None
        if measured is not None:
            self._compare(exported, measured)
        if self.waiting is not None and not self.waiting.is_better_than(self.best):
            self.waiting = None
        if exported != self.waiting_dir:
            shutil.rmtree(exported, ignore_errors=True)
        if self.waiting is None:
            shutil.rmtree(self.waiting_dir, ignore_errors=True)

    def _compare(self, exported: Path, measured: Measured) -> None:
        if measured.is_exact:
            if measured.is_better_than(self.best):
                self._set_best(exported, measured)
            else:
                self._note_rival(measured)
        elif exported != self.waiting_dir and all(
            measured.is_better_than(other) for other in (self.best, self.waiting)
        ):
            _keep(exported, self.waiting_dir, measured)
            self.waiting = measured

    def _set_best(self, exported: Path, measured: Measured) -> None:
        if self.best is not None and measured.is_comparable_to(self.best):
            measured = replace(measured, by=measured.decided_by(self.best))
        _keep(exported, self._best_dir, measured)
        self.best = measured

    def _note_rival(self, rival: Measured) -> None:
        """Note why the best weights beat `rival`, if that reason comes later in `REASONS` than the one noted before."""
        assert self.best is not None
        by = max(self.best.by, rival.decided_by(self.best), key=REASONS.index)
        if by != self.best.by:
            self.best = replace(self.best, by=by)
            write_atomically(self._best_dir / MEASURED_FILE, to_json(self.best.to_json()))


def _candidate(step: str) -> str:
    return f"candidate-{step}"


def _keep(exported: Path, kept: Path, measured: Measured) -> None:
    """Put `exported` in the place of `kept`. Even if the process is killed meanwhile, one of the two is still there."""
    write_atomically(exported / MEASURED_FILE, to_json(measured.to_json()))
    old = _set_aside(kept)
    shutil.rmtree(old, ignore_errors=True)
    if kept.exists():
        kept.rename(old)
    exported.rename(kept)
    shutil.rmtree(old, ignore_errors=True)


def _recover(kept: Path) -> None:
    """Put the set-aside weights back after a kill between two renames."""
    old = _set_aside(kept)
    if old.exists() and not kept.exists():
        old.rename(kept)
    shutil.rmtree(old, ignore_errors=True)


def _set_aside(kept: Path) -> Path:
    return kept.with_name(f".{kept.name}.old")
