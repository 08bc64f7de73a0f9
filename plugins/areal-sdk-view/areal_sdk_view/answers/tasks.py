"""A task through training: its attempts by version, and whether it was learnt, is flaky, or was lost."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean
from typing import Any

from areal_sdk.records import LEARNT, EpisodeSummary, FollowedRun
from areal_sdk_view.answers.episodes import row_of
from areal_sdk_view.answers.failures import split_of
from areal_sdk_view.answers.readings import largest_changes
from areal_sdk_view.library import NotThereError, OpenRun

WINDOWS = 12
"""Maximum number of windows into which a task's attempts are split, with equal numbers of attempts."""
LEAST = 3
"""Fewest attempts in a window."""
HIGH, LOW = 0.8, 0.2
"""Parts of the range of rewards: a task at `HIGH` is known, at `LOW` it is not."""
GAIN = 0.3
"""A change by this part of the range, by more than two standard errors, is one."""
MAX_TASKS = 500
MAX_ATTEMPTS = 2000


def list_tasks(run: FollowedRun, query: Mapping[str, str]) -> dict[str, Any]:
    """Each task of `split` (default: train, if the run has it) with its attempts, its first and last level, and what became of it."""
    split = split_of(run, query)
    by_task: dict[str, list[EpisodeSummary]] = defaultdict(list)
    for one in run.episodes:
        if one.split == split:
            by_task[one.task_id].append(one)
    rewards = [one.reward for found in by_task.values() for one in found if one.reward is not None]
    low, high = (min(rewards), max(rewards)) if rewards else (0.0, 1.0)
    rows = [
        {"task": task, "num": len(found), **_course(found, low, high)}
        for task, found in by_task.items()
    ]
    rows.sort(key=lambda row: (row["change"] is None, row["change"] or 0.0))
    became = Counter(row["became"] for row in rows)
    counts = {kind: became[kind] for kind in ("learnt", "known", "flaky", "lost", "never", "new")}
    return {
        "splits": sorted({one.split for one in run.episodes}),
        "split": split,
        "num_evaluations": len({one.measures for one in run.episodes if one.split not in LEARNT}),
        "counts": counts,
        "num": len(rows),
        "rows": rows[: MAX_TASKS // 2] + rows[MAX_TASKS // 2 :][-(MAX_TASKS // 2) :],
        "range": [low, high],
    }


def through_training(run: OpenRun, query: Mapping[str, str]) -> dict[str, Any]:
    """The attempts at `task`, and a band of windows over them. They are of one `split`, by default `train` if
    the task was trained."""
    task = query.get("task", "")
    of_task = run.of("task_id", task)
    splits = list(dict.fromkeys(one.split for one in of_task))
    split = query.get("split") or ("train" if "train" in splits else "".join(splits[:1]))
    found = [one for one in of_task if one.split == split]
    if not found:
        raise NotThereError(f"no task {task!r} in this run")
    scored = [one for one in found if one.reward is not None]
    return {
        "task": task,
        "split": split,
        "splits": sorted(splits),
        "num": len(found),
        "attempts": [row_of(one) for one in found[-MAX_ATTEMPTS:]],
        "band": [_window(part) for part in _windows(scored)],
        "changes": [*largest_changes(run, (one.id for one in found))],
        "errors": sum(one.reward is None for one in found),
    }


def _windows(found: Sequence[EpisodeSummary]) -> list[Sequence[EpisodeSummary]]:
    """Windows of at least `LEAST` attempts, in order; attempts at one version stay together as they ended."""
    size = max(LEAST, -(-len(found) // WINDOWS))
    return [found[first : first + size] for first in range(0, len(found), size)]


def _window(part: Sequence[EpisodeSummary]) -> dict[str, Any]:
    rewards = [one.reward for one in part if one.reward is not None]
    mean, error = fmean(rewards), _error(rewards)
    versions = [one.version for one in part if one.version is not None]
    return {
        "version": fmean(versions) if versions else 0.0,
        "time": fmean(one.time for one in part),
        "num": len(rewards),
        "mean": mean,
        "low": max(min(rewards), mean - 1.96 * error),
        "high": min(max(rewards), mean + 1.96 * error),
    }


def _course(found: Sequence[EpisodeSummary], low: float, high: float) -> dict[str, Any]:
    """The level of the first and of the last third of the attempts, and the word for the two."""
    rewards = [one.reward for one in found if one.reward is not None]
    third = len(rewards) // 3
    if third < 2:
        return {"first": None, "last": None, "change": None, "became": "new"}
    scale = (high - low) or 1.0
    begin, end = rewards[:third], rewards[-third:]
    first, last = ((fmean(part) - low) / scale for part in (begin, end))
    noise = 2.0 * sqrt(_error(begin) ** 2 + _error(end) ** 2) / scale
    change = last - first
    if change > max(GAIN, noise):
        became = "learnt"
    elif -change > max(GAIN, noise):
        became = "lost"
    elif last >= HIGH:
        became = "known"
    else:
        became = "never" if last <= LOW else "flaky"
    levels = {"first": fmean(begin), "last": fmean(end), "change": change}
    return {**levels, "became": became, "spark": _spark(rewards)}


def _spark(rewards: Sequence[float]) -> list[float]:
    size = max(1, -(-len(rewards) // WINDOWS))
    return [
        round(fmean(rewards[first : first + size]), 4) for first in range(0, len(rewards), size)
    ]


def _error(values: Sequence[float]) -> float:
    """The standard error of the mean."""
    if len(values) < 2:
        return 0.0
    mean = fmean(values)
    squares = ((value - mean) * (value - mean) for value in values)  # of huge rewards infinite
    return sqrt(sum(squares) / (len(values) - 1) / len(values))
