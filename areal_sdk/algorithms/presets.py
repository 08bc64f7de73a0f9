"""Algorithms: each a combination of small specs. Add one by writing a combination, `preset(knobs)`."""

from dataclasses import dataclass

from areal_sdk.algorithms.advantages import AdvantageEstimator, GroupRelative, RunningBaseline
from areal_sdk.algorithms.losses import ClippedSurrogate, ImportanceWeight, Objective
from areal_sdk.algorithms.proximal import Proximal


@dataclass(frozen=True, slots=True)
class Algorithm:
    """From rewards to a gradient."""

    advantages: AdvantageEstimator
    objective: Objective
    proximal: Proximal = Proximal.RECOMPUTE


@dataclass(frozen=True, slots=True)
class Knobs:
    """What `[algorithm]` sets on any preset that has it."""

    clip_low: float = 0.2
    clip_high: float = 0.28
    max_weight: float = 5.0
    proximal: Proximal = Proximal.RECOMPUTE


def grpo(knobs: Knobs) -> Algorithm:
    """Group-relative advantages, decoupled clipped surrogate, no KL term."""
    return Algorithm(GroupRelative(), _surrogate(knobs), knobs.proximal)


def running_baseline(knobs: Knobs) -> Algorithm:
    """For callers that come alone (`areal-sdk serve`): no siblings to compare with."""
    return Algorithm(RunningBaseline(), _surrogate(knobs), knobs.proximal)


def _surrogate(knobs: Knobs) -> Objective:
    return ClippedSurrogate(
        knobs.clip_low, knobs.clip_high, ImportanceWeight(maximum=knobs.max_weight)
    )
