"""The types of the presets' options: bounds, and the line that docs/config.md shows."""

from typing import Annotated

from pydantic import Field

from areal_sdk.algorithms.objectives import Beyond, Level, Proximal

ClipLow = Annotated[
    float,
    Field(
        gt=0,
        lt=1,
        description="The policy's ratio is clipped below 1 - `clip_low`. With one minibatch "
        "a step the ratio is 1, unless the centre is the sampler (`naive_ppo`).",
    ),
]
ClipHigh = Annotated[
    float,
    Field(
        gt=0,
        description="The policy's ratio is clipped above 1 + `clip_high`. With one minibatch "
        "a step the ratio is 1, unless the centre is the sampler (`naive_ppo`).",
    ),
]
DualClip = Annotated[
    float | None,
    Field(
        gt=1,
        description="Maximum ratio of a token with a negative advantage; default: no maximum.",
    ),
]
MaxWeight = Annotated[
    float,
    Field(
        gt=0,
        description="Maximum importance weight: the probability at the start of the step, divided by the "
        "probability at sampling.",
    ),
]
WeightLevel = Annotated[
    Level, Field(description="One weight per token, or one per trajectory (the geometric mean).")
]
BeyondMax = Annotated[
    Beyond,
    Field(
        description="A weight beyond `max_weight`: `clamp` it to `max_weight`, or `mask` its token."
    ),
]
Centre = Annotated[
    Proximal,
    Field(description="Source of the trust region's centre if a step has several minibatches."),
]
Discount = Annotated[
    float,
    Field(
        gt=0,
        le=1,
        description="Factor of a reward for the turn before the turn that earned it; its square for two "
        "turns before, and so on.",
    ),
]
MaxSurprise = Annotated[
    float,
    Field(
        ge=1,
        description="Maximum distance at which a reward counts, in spreads of its source's rewards.",
    ),
]
KLLoss = Annotated[
    float,
    Field(
        ge=0,
        description="Coefficient of the KL penalty to the checkpoint that the run began with, in "
        "the loss. Above 0 the trainer holds a frozen copy of that checkpoint in memory.",
    ),
]
KLReward = Annotated[
    float,
    Field(
        ge=0,
        description="Coefficient of the KL penalty in the reward of each token (its log-ratio to the "
        "checkpoint that the run began with). Above 0 the trainer holds a frozen copy of that "
        "checkpoint in memory.",
    ),
]
Entropy = Annotated[float, Field(ge=0, description="Coefficient of the entropy bonus.")]
Length = Annotated[
    int,
    Field(
        gt=0, description="Constant divisor of every episode, in place of its own number of tokens."
    ),
]
OverlongLimit = Annotated[
    int,
    Field(
        ge=0,
        description="Number of sampled tokens at which an episode gets the full overlong penalty; 0: no "
        "penalty.",
    ),
]
OverlongMargin = Annotated[
    int, Field(gt=0, description="The penalty grows over this number of tokens before the limit.")
]
OverlongPenalty = Annotated[
    float,
    Field(
        gt=0, description="The full penalty: an episode at the limit loses this much of its reward."
    ),
]
GroupNorm = Annotated[
    bool,
    Field(
        description="Compare rewards within their group first, in units of its standard deviation; the "
        "batch is normalised after that. Needs groups."
    ),
]
Scale = Annotated[float, Field(gt=0, description="Rewards are multiplied by this.")]
Bias = Annotated[
    float, Field(description="Added to rewards before they are multiplied by the scale.")
]
RewardClip = Annotated[
    float, Field(gt=0, description="Scaled rewards are clipped to this value, and to its negative.")
]
Tau = Annotated[
    float,
    Field(
        gt=0,
        description="Speed at which a term fades when its ratio moves away from 1, for positive "
        "advantages.",
    ),
]
TauNegative = Annotated[float, Field(gt=0, description="The same for negative advantages.")]
Moment = Annotated[
    float,
    Field(
        gt=0,
        description="Maximum mean square of the log-weights. Tokens with the largest log-weights are left "
        "out until the others are below this maximum.",
    ),
]
Trace = Annotated[
    float,
    Field(
        ge=0,
        le=1,
        description="Lambda of GAE. At 1 the critic's value of a token is compared with rewards only; below 1 "
        "also with the values of later tokens.",
    ),
]
TokenDiscount = Annotated[
    float,
    Field(
        gt=0, le=1, description="Factor of a reward for the token before, as `discount` for turns."
    ),
]
CriticRate = Annotated[float, Field(gt=0, description="Learning rate of the critic.")]
ValueClip = Annotated[
    float,
    Field(
        gt=0,
        description="A step gains nothing from moving a value of the critic further than this.",
    ),
]
