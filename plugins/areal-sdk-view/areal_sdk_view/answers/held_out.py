"""Evaluations side by side, task by task: the paired difference of their success, and the tasks that changed most."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np

from areal_sdk.records import LEARNT, EpisodeSummary, FollowedRun, Interval, wilson
from areal_sdk_traces.arms import difference_of
from areal_sdk_view.library import NotThereError

FIRST, LAST = "first", "last"
MAX_ROWS, MAX_SIDES = 500, 12
NUM_RESAMPLES = 4000

Attempts = Mapping[str, Sequence[EpisodeSummary]]
"""The attempts of an evaluation by the key of their task, which is the same in all runs."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The episodes of one split that a run played after one step."""

    run: str
    split: str
    step: int
    steps: Sequence[int]
    """The steps of all evaluations of this split in the run."""
    splits: Sequence[str]
    attempts: Attempts


def evaluation_of(run: FollowedRun, name: str, *, split: str, step: str) -> Evaluation:
    """The evaluation of `run` after `step`: a number, `first` or `last`. Without a split the first that was measured."""
    measured = [one for one in run.episodes if one.split not in LEARNT]
    splits = sorted({one.split for one in measured}, key=lambda one: (one != "eval", one))
    split = split or "".join(splits[:1])
    steps = sorted({_step(one) for one in measured if one.split == split})
    if not steps:
        raise NotThereError(f"run {name!r} has no evaluation of {split or 'held-out tasks'}")
    if step in (FIRST, LAST, ""):
        chosen = steps[0] if step == FIRST else steps[-1]
    else:
        chosen = int(step)
        if chosen not in steps:
            known = ", ".join(map(str, steps))
            raise NotThereError(
                f"run {name!r} has no evaluation after step {chosen}: it has {known}"
            )
    attempts: dict[str, list[EpisodeSummary]] = defaultdict(list)
    for one in measured:
        if one.split == split and _step(one) == chosen:
            attempts[one.task_key or one.task_id].append(one)
    return Evaluation(name, split, chosen, steps, splits, attempts)


def _step(one: EpisodeSummary) -> int:
    return one.measures if one.measures is not None else one.version or 0


def compare_tasks(sides: Sequence[Evaluation]) -> dict[str, Any]:
    """The tasks that all sides have scored. Those come first that changed most from the first side to the last."""
    common = [
        key
        for key in sides[0].attempts
        if all(_scored(side.attempts.get(key, ())) for side in sides)
    ]
    rates = [[_rate(side.attempts[key]) for key in common] for side in sides]
    rows = [_row(key, sides, [values[n] for values in rates]) for n, key in enumerate(common)]
    rows.sort(key=lambda row: (-abs(row["change"]["value"]), row["change"]["value"], row["task"]))
    return {
        "split": sides[0].split,
        "num_common": len(common),
        "sides": [
            _side(side, values, rates[0] if n else ())
            for n, (side, values) in enumerate(zip(sides, rates, strict=True))
        ],
        "rows": rows[:MAX_ROWS],
    }


def _side(side: Evaluation, rates: Sequence[float], before: Sequence[float]) -> dict[str, Any]:
    """The success of a side on the common tasks, and its difference from `before`, the first side, task by task."""
    episodes = [one for attempts in side.attempts.values() for one in attempts]
    changes = [now - then for now, then in zip(rates, before, strict=False)]
    return {name: getattr(side, name) for name in ("run", "step", "steps", "splits")} | {
        "num_tasks": len(side.attempts),
        "num_attempts": len(episodes),
        "num_unscored": sum(one.reward is None for one in episodes),
        "success": mean_of(rates, low=0.0, high=1.0) if rates else None,
        "change": mean_of(changes, low=-1.0, high=1.0) if changes else None,
        "num_better": sum(change > 0 for change in changes),
        "num_worse": sum(change < 0 for change in changes),
    }


def _row(key: str, sides: Sequence[Evaluation], rates: Sequence[float]) -> dict[str, Any]:
    """One task: the attempts of each side, and the episodes that show best what changed."""
    change = rates[-1] - rates[0]
    of_sides, intervals = [], list[Interval]()
    for number, side in enumerate(sides):
        attempts = side.attempts[key]
        scored = _scored(attempts)
        is_better = change < 0 if number == 0 else change > 0
        shown = (max if is_better else min)(scored, key=lambda one: (is_success(one), one.reward))
        num_success = sum(map(is_success, scored))
        intervals.append(wilson(num_success, len(scored)))
        of_sides.append(
            {
                "task": shown.task_id,
                "num": len(scored),
                "num_success": num_success,
                "num_unscored": len(attempts) - len(scored),
                "reward": fmean(one.reward or 0.0 for one in scored),
                **asdict(intervals[-1]),
                "episode": shown.id,
            }
        )
    return {
        "task": of_sides[0]["task"],
        "change": asdict(difference_of(intervals[-1], intervals[0])),
        "sides": of_sides,
    }


def _scored(attempts: Sequence[EpisodeSummary]) -> list[EpisodeSummary]:
    return [one for one in attempts if one.reward is not None]


def is_success(one: EpisodeSummary) -> bool:
    """The claim of the verdict, else whether the reward is 1: as evaluations count it."""
    return one.success if one.success is not None else one.reward == 1.0


def _rate(attempts: Sequence[EpisodeSummary]) -> float:
    return fmean(map(is_success, _scored(attempts)))


def mean_of(values: Sequence[float], *, low: float, high: float) -> dict[str, float]:
    """The mean over tasks with its 95 % interval: a percentile bootstrap over the tasks, the same at each call.

    If all values are equal, a bootstrap knows nothing. The interval then is exact: with 95 % confidence no more than
    `share` of all tasks have another value (Clopper-Pearson at none of `n`), which lies between `low` and `high`.

    >>> {name: round(value, 3) for name, value in mean_of([0.0] * 36, low=-1.0, high=1.0).items()}
    {'value': 0.0, 'low': -0.097, 'high': 0.097}
    """
    kinds, counts = np.unique(np.asarray(values, np.float64), return_counts=True)
    num, mean = len(values), fmean(values)
    if len(kinds) == 1:
        share = 1.0 - 0.025 ** (1.0 / num)
        below, above = mean + share * (low - mean), mean + share * (high - mean)
    else:
        drawn = np.random.default_rng(0).multinomial(num, counts / num, size=NUM_RESAMPLES)
        below, above = np.quantile(drawn @ kinds / num, (0.025, 0.975))
    return {"value": mean, "low": float(below), "high": float(above)}
