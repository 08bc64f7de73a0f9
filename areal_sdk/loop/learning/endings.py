"""The end of a run that has nothing left to learn, or nothing to learn from: its name, and the advice what to change."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from areal_sdk.config.sections.base import ENDLESS
from areal_sdk.records.diagnosis.cures import to_get_a_signal, to_get_rewards
from areal_sdk.records.diagnosis.measures import BOUNDS, differing
from areal_sdk.records.diagnosis.seen import success_over_all

ALMOST = 0.01
STUCK = (
    "the attempts at each task all earn the same, as of a policy that has one answer only: areal-sdk inspect "
    "{run} --worst 5. Go on from better weights (--init-from {run} takes the best), with a lower "
    "trainer.learning_rate, or with an entropy bonus where the algorithm has one"
)


@dataclass(frozen=True, slots=True)
class Lesson:
    """The lesson of a step: how much the step had to teach."""

    success: float
    """Success over all episodes that ended. An episode without a reward is no success."""
    without_reward: float
    """Share of the episodes that ended without a reward."""
    differing: float
    """The share of the groups whose rewards differ."""
    is_empty: bool
    """Whether the step had no gradient at all, not even an infinite one."""


class LatestLessons:
    """The lessons of the latest steps. When they are all empty, or all learnt, the run ends."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lessons: deque[Lesson] = deque(maxlen=limit if limit < ENDLESS else 0)
        self._step: Mapping[str, Any] = {}

    def add(self, batch: Mapping[str, float], metrics: Mapping[str, float]) -> None:
        """Add the lesson of a step on this batch, which gave these metrics."""
        parts = ("batch", batch), ("train", metrics)
        self._step = {f"{part}/{name}": v for part, of in parts for name, v in of.items()}
        has_gradient = metrics.get("num_updates") or metrics.get("num_skipped_updates")
        share = differing(self._step) if batch.get("groups") else None
        lesson = Lesson(
            success=success_over_all(batch),
            without_reward=batch.get("without_reward") or 0.0,
            differing=1.0 if share is None else share,
            is_empty=not has_gradient,
        )
        self._lessons.append(lesson)

    def forget(self) -> None:
        """Drop the lessons of all steps so far: other weights have replaced the policy that they were about."""
        self._lessons.clear()

    def ending(self, run: object) -> tuple[str, str] | None:
        """The reason why the run in the directory `run` ends, and a line for its user; None if it goes on.

        A run ends if no step had a gradient, or if nearly all episodes succeed and few groups differ. In a large
        batch a few groups differ, however well the tasks are solved.
        """
        if len(self._lessons) < self._limit:
            return None
        success = fmean(lesson.success for lesson in self._lessons)
        share = fmean(lesson.differing for lesson in self._lessons)
        is_solved = success >= 1 - ALMOST
        if not (is_solved and share <= BOUNDS.differing) and not self._are_empty:
            return None
        if is_solved:
            return "solved", (
                f"{success:.1%} of the episodes of the last {self._limit} batches succeed, which leaves little to learn: "
                "take harder tasks, or raise run.max_empty_batches to go on with these"
            )
        word = "hopeless" if success <= ALMOST else "stuck"
        without = fmean(lesson.without_reward for lesson in self._lessons)
        if without > ALMOST:
            return word, (
                f"{without:.0%} of the episodes got no reward and count as failures: "
                f"{to_get_rewards(self._step)}"
            )
        if word == "hopeless":
            return word, f"no attempt succeeds: {to_get_a_signal(success)}"
        return word, STUCK.format(run=run)

    @property
    def _are_empty(self) -> bool:
        return all(lesson.is_empty for lesson in self._lessons)
