"""Algorithms: each a combination of small specs. A preset's keyword parameters are its options.

Imports no torch, so that options are checked before any process starts: what needs torch is imported
inside the presets.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from areal_sdk.algorithms.advantages import AdvantageEstimator, GroupRelative
from areal_sdk.algorithms.running import RunningBaseline
from areal_sdk.errors import ConfigError

if TYPE_CHECKING:
    from areal_sdk.algorithms.losses import Objective


class Proximal(StrEnum):
    """How p is found from the second minibatch of a step on. In the first, p = q.detach()."""

    RECOMPUTE = "recompute"
    """One forward over the batch before the first update."""
    INTERPOLATE = "interpolate"
    """No forward: on the way from b to q."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """From rewards to a gradient."""

    advantages: AdvantageEstimator
    objective: "Objective"
    proximal: Proximal = Proximal.RECOMPUTE

    def __post_init__(self) -> None:
        """A preset of a user may have passed its text on."""
        try:
            object.__setattr__(self, "proximal", Proximal(self.proximal))
        except ValueError:
            raise ConfigError(
                f"proximal = {self.proximal!r}: choose one of {', '.join(Proximal)}"
            ) from None


ClipLow = Annotated[
    float,
    Field(
        gt=0,
        lt=1,
        description="Below 1 - `clip_low` the policy's ratio is clipped; acts from the second "
        "minibatch on.",
    ),
]
ClipHigh = Annotated[
    float,
    Field(
        gt=0,
        description="Above 1 + `clip_high` the policy's ratio is clipped; acts from the second "
        "minibatch on.",
    ),
]
MaxWeight = Annotated[
    float,
    Field(
        gt=0,
        description="Bound of the weight between the sampler and the policy at the start of the "
        "step.",
    ),
]
Centre = Annotated[
    Proximal,
    Field(
        description="Where the trust region's centre comes from when there are several minibatches."
    ),
]
Discount = Annotated[
    float,
    Field(
        gt=0,
        le=1,
        description="What a reward is worth to the turn before the one that earned it; two turns "
        "before, its square.",
    ),
]
MaxSurprise = Annotated[
    float,
    Field(ge=1, description="How many spreads of its source's rewards one reward may count for."),
]

CLIP_LOW, CLIP_HIGH, MAX_WEIGHT = 0.2, 0.28, 5.0


def grpo(
    *,
    clip_low: ClipLow = CLIP_LOW,
    clip_high: ClipHigh = CLIP_HIGH,
    max_weight: MaxWeight = MAX_WEIGHT,
    proximal: Centre = Proximal.RECOMPUTE,
    discount: Discount = 1.0,
) -> Algorithm:
    """Group-relative advantages, decoupled clipped surrogate, no KL term."""
    from areal_sdk.algorithms.losses import ClippedSurrogate, ImportanceWeight

    return Algorithm(
        GroupRelative(discount=discount),
        ClippedSurrogate(clip_low, clip_high, ImportanceWeight(max_weight)),
        proximal,
    )


def running_baseline(
    *,
    clip_low: ClipLow = CLIP_LOW,
    clip_high: ClipHigh = CLIP_HIGH,
    max_weight: MaxWeight = MAX_WEIGHT,
    proximal: Centre = Proximal.RECOMPUTE,
    discount: Discount = 1.0,
    max_surprise: MaxSurprise = 5.0,
) -> Algorithm:
    """For callers that come alone (`areal-sdk serve`): no siblings to compare with."""
    from areal_sdk.algorithms.losses import ClippedSurrogate, ImportanceWeight

    return Algorithm(
        RunningBaseline(discount=discount, max_surprise=max_surprise),
        ClippedSurrogate(clip_low, clip_high, ImportanceWeight(max_weight)),
        proximal,
    )
