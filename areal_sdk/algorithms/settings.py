"""The types of the presets' options: bounds, and the line that docs/config.md shows."""

from typing import Annotated

from pydantic import Field

from areal_sdk.algorithms.objectives import Beyond, Level, Proximal

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
DualClip = Annotated[
    float | None,
    Field(
        gt=1,
        description="Where the advantage is negative, the ratio counts as this at most.",
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
WeightLevel = Annotated[
    Level, Field(description="One weight a token, or one a trajectory (their geometric mean).")
]
BeyondMax = Annotated[
    Beyond, Field(description="Weights beyond `max_weight`: count as `max_weight`, or not at all.")
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
KLLoss = Annotated[
    float,
    Field(
        ge=0,
        description="Coefficient of the KL penalty to the checkpoint that the run began with, in "
        "the loss; above 0 a frozen copy of it is held in memory.",
    ),
]
KLReward = Annotated[
    float,
    Field(
        ge=0,
        description="What each token's reward loses for its log-ratio to the checkpoint that the "
        "run began with; above 0 a frozen copy of it is held in memory.",
    ),
]
Entropy = Annotated[float, Field(ge=0, description="Coefficient of the entropy bonus.")]
Length = Annotated[
    int,
    Field(gt=0, description="Tokens that every episode is divided by, however long it is."),
]
OverlongLimit = Annotated[
    int,
    Field(
        ge=0,
        description="Sampled tokens of an episode at which the whole overlong penalty is due; 0: "
        "no penalty.",
    ),
]
OverlongMargin = Annotated[
    int, Field(gt=0, description="Tokens before the limit over which the penalty grows.")
]
OverlongPenalty = Annotated[
    float, Field(gt=0, description="What an episode at the limit loses of its reward.")
]
Scale = Annotated[float, Field(gt=0, description="Rewards are multiplied by this.")]
Bias = Annotated[float, Field(description="Is added to rewards before they are scaled.")]
RewardClip = Annotated[float, Field(gt=0, description="Bound of scaled rewards, up and down.")]
Tau = Annotated[
    float,
    Field(
        gt=0, description="How fast a term fades as its ratio leaves 1; for positive advantages."
    ),
]
TauNegative = Annotated[float, Field(gt=0, description="The same for negative advantages.")]
Moment = Annotated[
    float,
    Field(
        gt=0,
        description="Tokens with the largest squared log-weights are left out until the mean square "
        "of the others is below this.",
    ),
]
Trace = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="Lambda of GAE: at 1 only rewards count against the critic's values, below it "
        "the values of later tokens too.",
    ),
]
TokenDiscount = Annotated[
    float, Field(gt=0, le=1, description="What a reward is worth to the token before.")
]
CriticRate = Annotated[float, Field(gt=0, description="Learning rate of the critic.")]
ValueClip = Annotated[
    float,
    Field(gt=0, description="How far a step may better a value by moving it, before it stops."),
]
