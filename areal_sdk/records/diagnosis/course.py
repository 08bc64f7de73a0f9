"""The course of a run: whether its success or its reward rose, fell or stayed, by more than chance."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import hypot, sqrt
from operator import itemgetter
from statistics import fmean, median
from typing import Any

from areal_sdk.records.diagnosis.cures import SOLVED
from areal_sdk.telemetry.live.terminal import counted

Evaluation = Mapping[str, Any]
PARTS, LEAST = 6, 3
"""Number of windows in which a run is seen, and the fewest steps of a window."""
GAIN, GAIN_ERRORS = 0.05, 3.0
"""Share of the scale, and number of standard errors: a rise is a gain if it exceeds both."""
LEAN_ERRORS = 2.0
"""Number of standard errors from which a rise may be a gain, though it may be chance too."""
LOSS, LOSS_ERRORS, LOSS_SHARE = 0.1, 4.0, 0.33
"""Share of the scale, number of standard errors, and share of the gain: a drop is a fall if it exceeds all three."""
ENTROPY = 2.0
"""An entropy that grew or shrank by this factor is named with a fall."""
MORE = 1.25
"""Factor by which the reward must have moved more than the success for the course to be that of the reward."""
NORMAL = 1.4826
"""The standard deviation of normally distributed values, in units of their median deviation."""


@dataclass(frozen=True, slots=True)
class Course:
    """A measure of a run, step by step."""

    name: str
    steps: Sequence[int]
    values: Sequence[float]
    scale: float
    """The size of a large difference: 1 for a success, and for a reward twice the largest spread in a batch, unless
    only one batch has that spread."""
    entropies: Sequence[float | None]

    @property
    def means(self) -> list[float]:
        """The mean of each window. Each window begins one step after the window before."""
        return windows(self.values)

    @property
    def first(self) -> float:
        return self.means[0]

    @property
    def last(self) -> float:
        return self.means[-1]

    @property
    def best(self) -> int:
        """The index of the best window, which is also the index of its first step."""
        means = self.means
        return means.index(max(means))

    @property
    def error(self) -> float:
        """The standard error of the difference of two windows. Changes from step to step count as chance.

        It is the larger of two estimates: the median change is 0 if most steps score alike, and the mean of squared
        changes is small if most of them changed a little.
        """
        changes = [abs(b - a) for a, b in pairwise(self.values)]
        if not changes:
            return 0.0
        usual = max(NORMAL * median(changes), sqrt(fmean(change * change for change in changes)))
        return usual / sqrt(len(self.values) + 1 - len(self.means))

    @property
    def rose(self) -> bool:
        return self._rose_by(GAIN_ERRORS)

    @property
    def leans_up(self) -> bool:
        """Whether the measure seems to rise, even if this may be chance."""
        return self._rose_by(LEAN_ERRORS)

    def _rose_by(self, errors: float) -> bool:
        return self.last - self.first > max(GAIN * self.scale, errors * self.error)

    @property
    def fell(self) -> bool:
        best = max(self.means)
        least = max(LOSS * self.scale, LOSS_ERRORS * self.error, LOSS_SHARE * (best - self.first))
        return best - self.last > least

    @property
    def is_solved(self) -> bool:
        """Whether there is nothing left to learn."""
        return self.name == "success" and not self.fell and self.last >= SOLVED

    def gained(self, evaluations: Iterable[Evaluation]) -> bool:
        """Whether the measure, or success on held-out tasks, rose and stayed."""
        rose = self.values and (self.rose or held_out_rise(evaluations))
        return bool(rose) and not self.fell

    def told(self) -> str:
        """The course of the measure in one line.

        >>> Course("success", range(1, 7), (0.1, 0.1, 0.1, 0.7, 0.8, 0.9), 1.0, [None] * 6).told()
        'success 0.10 -> 0.80 in 6 steps'
        """
        first, last = number(self.first), number(self.last)
        return f"{self.name} {first} -> {last} in {counted(len(self.values), 'step')}"

    def told_fall(self) -> str:
        """The fall of the measure in one line: its best step, its present value, and the change of the entropy.

        >>> values, entropies = (0.2, 0.5, 0.8, 0.1, 0.1, 0.0), (0.5, 0.5, 0.5, 0.6, 1.7, 2.0)
        >>> Course("success", range(1, 7), values, 1.0, entropies).told_fall()
        'success was 0.50 at step 3 and is 0.07 at step 6; entropy grew from 0.50 to 2.00, most at step 5'
        """
        means = self.means
        width = len(self.values) + 1 - len(means)
        at = self.best + width - 1
        fall = (
            f"{self.name} was {number(max(means))} at step {self.steps[at]} and is {number(self.last)} at step "
            f"{self.steps[-1]}"
        )
        later = [
            (e, step) for e, step in zip(self.entropies[at:], self.steps[at:], strict=True) if e
        ]
        if len(later) < 2:
            return fall
        (begun, _), (ended, _) = later[0], later[-1]
        grew = ended >= ENTROPY * begun
        if not grew and ended * ENTROPY > begun:
            return fall
        changes = [(b / a if grew else a / b, step) for (a, _), (b, step) in pairwise(later)]
        way = "grew" if grew else "shrank"
        return (
            f"{fall}; entropy {way} from {begun:.2f} to {ended:.2f}, most at step {max(changes)[1]}"
        )


def course_of(steps: Sequence[Mapping[str, Any]]) -> Course:
    """The course of the success or of the reward, whichever moved more."""
    success, reward = (course_by(steps, name) for name in ("success", "reward"))
    if not success.values or _moved(reward) > MORE * _moved(success):
        return reward
    return success


def held_out_fall(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """A split's best evaluation and the later, clearly worse ones; empty if the last evaluation is not among them."""
    for rows in _by_split(evaluations):
        best = max(rows, key=itemgetter("success"))
        later = rows[rows.index(best) :]
        worse = [
            row for row in later if _gain(row, best) > max(LOSS, LOSS_ERRORS * _error(row, best))
        ]
        if worse and worse[-1] is rows[-1]:
            return [best, *worse]
    return []


def held_out_rise(evaluations: Iterable[Evaluation]) -> list[Evaluation]:
    """The first and the last evaluation of a split, if the last one is better by more than chance; else empty."""
    for rows in _by_split(evaluations):
        if _gain(rows[0], rows[-1]) > max(GAIN, GAIN_ERRORS * _error(rows[0], rows[-1])):
            return [rows[0], rows[-1]]
    return []


def held_out_still(
    evaluations: Iterable[Evaluation],
) -> Iterator[tuple[Evaluation, Evaluation, float]]:
    """The first and the last evaluation of each split that does not seem to rise, and the error of their difference."""
    for rows in _by_split(evaluations):
        error = _error(rows[0], rows[-1])
        if len(rows) > 1 and _gain(rows[0], rows[-1]) <= LEAN_ERRORS * error:
            yield rows[0], rows[-1], error


def _by_split(evaluations: Iterable[Evaluation]) -> Iterable[list[Evaluation]]:
    splits: dict[str, list[Evaluation]] = {}
    for row in sorted(evaluations, key=itemgetter("step")):
        success = (row.get("success"), row.get("success_low"), row.get("success_high"))
        if all(isinstance(value, int | float) for value in success):
            splits.setdefault(row.get("split", ""), []).append(row)
    return splits.values()


def _gain(first: Evaluation, last: Evaluation) -> float:
    return float(last["success"] - first["success"])


def _error(*rows: Evaluation) -> float:
    """The binomial standard error of a difference: the interval of each evaluation is four errors wide."""
    return hypot(*((row["success_high"] - row["success_low"]) / 4 for row in rows))


def windows(values: Sequence[float]) -> list[float]:
    """The mean of each window of `values`.

    >>> windows([0.0, 0.0, 3.0, 0.0])
    [1.0, 1.0]
    """
    width = min(len(values), max(LEAST, len(values) // PARTS))
    return [fmean(values[start : start + width]) for start in range(len(values) - width + 1)]


def course_by(steps: Sequence[Mapping[str, Any]], name: str) -> Course:
    """The course of the `success` or of the `reward`; without values if no step has any."""
    known = [step for step in steps if step.get(f"batch/{name}") is not None]
    values = [float(step[f"batch/{name}"]) for step in known]
    scale = 1.0
    if name == "reward":
        spreads = [float(step.get("batch/reward_std") or 0.0) for step in known]
        scale = 2.0 * max(_middles(spreads), default=0.0)
        values = without_spikes(values, scale)
    entropies = [step.get("train/entropy") for step in known]
    return Course(name, [step["step"] for step in known], values, scale, entropies)


def without_spikes(values: Sequence[float], scale: float) -> list[float]:
    """`values`, each bounded to `scale` from the median of its neighbours, so that one absurd reward does not decide
    the mean of its window.

    >>> without_spikes([0.1, 0.2, -15.0, 0.2, 0.3], scale=0.5)
    [0.1, 0.2, -0.3, 0.2, 0.3]
    """
    if not scale:
        return list(values)
    return [
        min(max(value, middle - scale), middle + scale)
        for value, middle in zip(values, _middles(values), strict=True)
    ]


def _middles(values: Sequence[float]) -> list[float]:
    """The median of the three values nearest to each value; the values themselves if there are fewer than three.

    >>> _middles([0.5, 30.0, 0.4, 0.3])
    [0.5, 0.5, 0.4, 0.4]
    """
    if len(values) < 3:
        return list(values)
    starts = [min(max(at - 1, 0), len(values) - 3) for at in range(len(values))]
    return [median(values[start : start + 3]) for start in starts]


def _moved(course: Course) -> float:
    if not course.values or not course.scale:
        return 0.0
    return (max(course.means) - min(course.means)) / course.scale


def number(value: float) -> str:
    return f"{value:.2f}" if 0.01 <= abs(value) < 100 or not value else f"{value:.2g}"
