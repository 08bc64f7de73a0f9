"""Algorithms: each a combination of small specs. Add one by writing a combination, `preset(knobs)`."""

from dataclasses import dataclass

from areal_sdk.algorithms.advantages import AdvantageEstimator, GroupRelative
from areal_sdk.algorithms.losses import ClippedSurrogate, ImportanceWeight, Objective, Proximal
from areal_sdk.algorithms.running import RunningBaseline


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
    discount: float = 1.0
    max_surprise: float = 5.0


def grpo(knobs: Knobs) -> Algorithm:
    """Group-relative advantages, decoupled clipped surrogate, no KL term."""
    return Algorithm(GroupRelative(discount=knobs.discount), _surrogate(knobs), knobs.proximal)


def running_baseline(knobs: Knobs) -> Algorithm:
    """For callers that come alone (`areal-sdk serve`): no siblings to compare with."""
    estimator = RunningBaseline(discount=knobs.discount, max_surprise=knobs.max_surprise)
    return Algorithm(estimator, _surrogate(knobs), knobs.proximal)


def _surrogate(knobs: Knobs) -> Objective:
    return ClippedSurrogate(
        knobs.clip_low, knobs.clip_high, ImportanceWeight(maximum=knobs.max_weight)
    )
