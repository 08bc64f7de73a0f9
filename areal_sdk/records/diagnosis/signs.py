"""The signs from which the rules of `why` judge: metrics, ledger, index, and a sample of the episodes and tokens."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Self

import numpy as np

from areal_sdk.errors import StorageError
from areal_sdk.records.diagnosis.course import LEAST, NORMAL, PARTS, Course, course_of, number
from areal_sdk.telemetry import EpisodeSummary, RunDir
from areal_sdk.telemetry.episode_log import LEARNT, read_episode
from areal_sdk.telemetry.metrics import called_tools, tool_use
from areal_sdk.telemetry.token_log import TokenFlag
from areal_sdk.types import Episode, Turn

Step = Mapping[str, Any]
Points = Sequence[tuple[int, float]]

NUM_SAMPLED = 96
"""Number of episodes that are read whole, spread evenly over the run."""
FAR = 1.0
"""Nats by which engine and trainer may differ at a token before the token counts as far off."""
APART, PART = 4.0, 0.25
"""Number of deviations of the noise, and share of the first level, by which a metric must differ from that level."""


@dataclass(frozen=True, slots=True)
class FirstMove:
    """The first lasting change of a metric."""

    metric: str
    step: int
    before: float
    """The median of the first steps."""
    after: float

    def __str__(self) -> str:
        return (
            f"{self.metric}, from {number(self.before)} to {number(self.after)} at step {self.step}"
        )


@dataclass(frozen=True, slots=True)
class FarTokens:
    """The tokens of one step whose logprobs differ between engine and trainer."""

    step: int
    num_tokens: int
    share: float
    """Share of the tokens that differ by more than `FAR`."""
    mean: float


@dataclass(frozen=True, slots=True)
class Signs:
    """A run as the rules see it."""

    steps: Sequence[Step]
    settings: Mapping[str, Any]
    summaries: Sequence[EpisodeSummary] = ()
    """The episodes that the run learnt from or dropped, oldest first."""
    sampled: Sequence[tuple[int, Episode]] = ()
    """A sample of these episodes with their turns, each with its step."""
    failed: Sequence[Episode] = ()
    """A sample of the episodes whose reward or agent failed."""
    far_tokens: FarTokens | None = None
    """Tokens of the step at which engine and trainer differed most under the same weights."""
    num_unreadable: int = 0
    """Number of episodes of the sample whose file is damaged or gone."""
    evaluations: Sequence[Step] = ()
    """The evaluations of held-out tasks, of a run that trains."""
    is_evaluation: bool = False
    """Whether nothing was trained. The figures of the evaluation then stand for those of one step."""
    course: Course = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "course", course_of(self.steps))

    @classmethod
    def of(cls, run_dir: RunDir) -> Self:
        """Read a run directory. The time grows with the index of its episodes: only a sample of them is read whole."""
        is_evaluation = run_dir.only_measured()
        listed = run_dir.list_episodes()
        found = [one for one in listed if is_evaluation or one.split in LEARNT][::-1]
        failures = [one for one in found if one.error]
        sampled, lost = _read(run_dir, _spread(found, NUM_SAMPLED))
        failed, lost_too = _read(run_dir, _spread(failures, NUM_SAMPLED // 4))
        steps: list[Step] = [step for step in run_dir.read_steps() if step.get("batch/groups")]
        evaluations = [*filter(_has_figures, run_dir.read_history(kind="eval"))]
        if is_evaluation:
            steps = [_as_step(one, sampled) for one in evaluations]
        return cls(
            steps,
            run_dir.read_config(),
            found,
            sampled,
            [episode for _, episode in failed],
            _far_tokens(run_dir, steps),
            lost + lost_too,
            [] if is_evaluation else evaluations,
            is_evaluation,
        )

    @property
    def is_healthy(self) -> bool:
        """Whether success or reward rose, in training or on held-out tasks, and stayed."""
        return self.course.gained(self.evaluations)

    @property
    def turns(self) -> list[tuple[int, Turn]]:
        """The turns of the sampled episodes, each with its step."""
        return [(step, turn) for step, episode in self.sampled for turn in episode.turns]

    def points(self, metric: str) -> Points:
        """The values of a metric of steps, by step."""
        return [(s["step"], float(s[metric])) for s in self.steps if s.get(metric) is not None]

    def mean(self, metric: str) -> float | None:
        values = [value for _, value in self.points(metric)]
        return fmean(values) if values else None

    def ends(self, metric: str) -> tuple[float, float] | None:
        """The means of the first and of the last steps; None if there are too few."""
        values = [value for _, value in self.points(metric)]
        width = max(LEAST, len(values) // PARTS)
        if len(values) < 2 * width:
            return None
        return fmean(values[:width]), fmean(values[-width:])

    def moved(self, metrics: Iterable[str]) -> FirstMove | None:
        """The move of the metric that moved first; None if all metrics are as they were in the first steps."""
        found = [moved for name in metrics if (moved := first_move(name, self.points(name)))]
        return min(found, key=lambda one: one.step, default=None)


def first_move(metric: str, points: Points) -> FirstMove | None:
    """The first lasting change of a metric.

    >>> str(first_move("train/entropy", [(n, 2.0) for n in range(1, 9)] + [(n, 0.5) for n in range(9, 13)]))
    'train/entropy, from 2.00 to 0.50 at step 9'
    """
    width = max(LEAST, len(points) // PARTS)
    values = [value for _, value in points]
    first = median(values[:width]) if values else 0.0
    noise = NORMAL * median([abs(b - a) for a, b in pairwise(values)] or [0.0])
    least = max(APART * noise, PART * abs(first), 1e-6)
    for at in range(width, len(values) - LEAST + 1):
        after = values[at : at + LEAST]
        if min(abs(value - first) for value in after) > least:
            return FirstMove(metric, points[at][0], first, median(after))
    return None


def since(points: Points, is_bad: Callable[[float], bool]) -> int:
    """The first step from which the mean of a few steps is bad; the first step of all if no mean is.

    >>> since([(1, 0.0), (2, 1.0), (3, 0.0), (4, 1.0), (5, 1.0), (6, 1.0)], lambda share: share > 0.9)
    4
    """
    for at in range(len(points) - LEAST + 1):
        window = points[at : at + LEAST]
        if is_bad(fmean(value for _, value in window)):
            return next((step for step, value in window if is_bad(value)), window[0][0])
    return points[0][0] if points else 1


def _has_figures(event: Mapping[str, Any]) -> bool:
    """Whether an evaluation, maybe of another version, has what `_as_step` needs."""
    needed = ("episodes", "scored", "tasks", "truncated", "to_version")
    return all(isinstance(event.get(name), int | float) for name in needed)


def _as_step(event: Mapping[str, Any], sampled: Iterable[tuple[int, Episode]]) -> Step:
    """The figures of an evaluation under the names that a step has for them, as if a step had trained all its episodes."""
    num, compared = max(1.0, event["episodes"]), event.get("compared", 0.0)
    kinds = {"abstain": "unjudged", "timeout": "timeout"}
    kinds |= {kind: f"{kind}_error" for kind in ("agent", "reward", "environment")}
    tools = tool_use(called_tools(episode) for _, episode in sampled)
    return {
        "step": int(event["to_version"]) + 1,
        "batch/groups": compared or event["tasks"],
        "batch/episodes": event["scored"],
        "batch/uniform_groups": compared - event.get("differing", 0.0),
        "batch/truncated": event["truncated"] / num,
        "train/num_updates": 1.0,
        **{f"batch/{kinds[k]}_share": event.get(f"errors/{k}", 0.0) / num for k in kinds},
        **{f"batch/{name}": event[name] for name in ("reward", "success") if name in event},
        **{f"batch/{name}": figure for name, figure in tools.items()},
    }


def _spread(items: Sequence[EpisodeSummary], count: int) -> list[EpisodeSummary]:
    """A sample of at most `count` of the items, the first and the last among them."""
    if len(items) <= count:
        return [*items]
    return [items[round(n * (len(items) - 1) / (count - 1))] for n in range(count)]


def _read(
    run_dir: RunDir, summaries: Iterable[EpisodeSummary]
) -> tuple[list[tuple[int, Episode]], int]:
    """The whole episodes, each with its step, and the number of those that cannot be read."""
    found, lost = [], 0
    for one in summaries:
        try:
            found.append((step_of(one), read_episode(run_dir.episodes, one).episode))
        except StorageError:
            lost += 1
    return found, lost


def step_of(summary: EpisodeSummary) -> int:
    """The step that trained the episode, or could have."""
    return summary.step if summary.step is not None else (summary.version or 0) + 1


def _far_tokens(run_dir: RunDir, steps: Sequence[Step]) -> FarTokens | None:
    known = [step for step in steps if step.get("train/dlogp_lag_0") is not None]
    worst = max(known, key=lambda step: float(step["train/dlogp_lag_0"]), default={})
    try:
        tokens = run_dir.read_tokens(worst.get("step", 0))
    except (StorageError, LookupError, TypeError):  # damaged: no other sign needs it
        return None
    if tokens is None or "train_minus_behaviour" not in tokens.columns:
        return None
    terms = tokens.columns["flags"].astype(np.uint8) & TokenFlag.TERM > 0
    apart = np.abs(tokens.columns["train_minus_behaviour"][terms])
    if not len(apart):
        return None
    return FarTokens(worst["step"], len(apart), float((apart > FAR).mean()), float(apart.mean()))
