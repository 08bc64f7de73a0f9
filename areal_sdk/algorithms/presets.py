"""Algorithms by name: each a combination of small specs. The keyword parameters of a preset are its
options. Their defaults are written here and nowhere else.

Imports no torch: options and combinations are checked before any process starts.
"""

import math

from areal_sdk.algorithms import settings as s
from areal_sdk.algorithms.advantages import (
    GAE,
    BatchNormalised,
    BatchStd,
    GroupRelative,
    LeaveOneOut,
    Returns,
    RunningBaseline,
)
from areal_sdk.algorithms.aggregation import ConstantLength, SequenceMean
from areal_sdk.algorithms.algorithm import Algorithm
from areal_sdk.algorithms.objectives import (
    KL,
    Beyond,
    Clip,
    Critic,
    EntropyBonus,
    ImportanceWeight,
    Level,
    NoWeight,
    Penalty,
    Proximal,
    ReferenceKL,
    SecondMoment,
    SequenceRatio,
    SoftGate,
    Surrogate,
    TruncatedRatio,
    Unbounded,
)
from areal_sdk.algorithms.shaping import Overlong, RewardShaping
from areal_sdk.errors import ConfigError

CLIP_LOW, CLIP_HIGH, MAX_WEIGHT = 0.2, 0.28, 5.0
CLIP = 0.2
"""Clip on both sides, as in PPO's own paper."""


def grpo(
    *,
    clip_low: s.ClipLow = CLIP_LOW,
    clip_high: s.ClipHigh = CLIP_HIGH,
    dual_clip: s.DualClip = None,
    max_weight: s.MaxWeight = MAX_WEIGHT,
    weight_level: s.WeightLevel = Level.TOKEN,
    beyond: s.BeyondMax = Beyond.CLAMP,
    proximal: s.Centre = Proximal.RECOMPUTE,
    discount: s.Discount = 1.0,
    kl: s.KLLoss = 0.0,
    entropy: s.Entropy = 0.0,
) -> Algorithm:
    """Group-relative advantages, decoupled clipped surrogate, no KL term by default."""
    weight = ImportanceWeight(max_weight, weight_level, beyond)
    region = Clip(clip_low, clip_high, dual_clip)
    objective = Surrogate(region, weight, penalties=_penalties(kl, entropy))
    return Algorithm(GroupRelative(discount=discount), objective, proximal)


def drgrpo(
    *,
    clip_low: s.ClipLow = CLIP,
    clip_high: s.ClipHigh = CLIP,
    max_weight: s.MaxWeight = MAX_WEIGHT,
    proximal: s.Centre = Proximal.RECOMPUTE,
    discount: s.Discount = 1.0,
    length: s.Length = 256,
) -> Algorithm:
    """GRPO without its two biases: no standard deviation, no length of the answers in the divisor."""
    return Algorithm(
        GroupRelative(discount=discount, std=None),
        Surrogate(Clip(clip_low, clip_high), ImportanceWeight(max_weight)),
        proximal,
        ConstantLength(length),
    )


def dapo(
    *,
    clip_low: s.ClipLow = CLIP_LOW,
    clip_high: s.ClipHigh = CLIP_HIGH,
    max_weight: s.MaxWeight = MAX_WEIGHT,
    proximal: s.Centre = Proximal.RECOMPUTE,
    discount: s.Discount = 1.0,
    overlong_limit: s.OverlongLimit = 0,
    overlong_margin: s.OverlongMargin = 64,
    overlong_penalty: s.OverlongPenalty = 1.0,
) -> Algorithm:
    """GRPO with a higher upper clip, token mean and a soft limit of length; set
    `rollout.dynamic_sampling = true` with it."""
    overlong = _overlong(overlong_limit, overlong_margin, overlong_penalty)
    return Algorithm(
        GroupRelative(discount=discount),
        Surrogate(Clip(clip_low, clip_high), ImportanceWeight(max_weight)),
        proximal,
        shaping=RewardShaping(overlong=overlong) if overlong else None,
    )


def gspo(
    *,
    clip_low: s.ClipLow = 3e-4,
    clip_high: s.ClipHigh = 4e-4,
    max_weight: s.MaxWeight = MAX_WEIGHT,
    proximal: s.Centre = Proximal.RECOMPUTE,
    discount: s.Discount = 1.0,
) -> Algorithm:
    """Ratios, clip and weights of whole trajectories; each episode counts the same."""
    weight = ImportanceWeight(max_weight, Level.SEQUENCE)
    return Algorithm(
        GroupRelative(discount=discount),
        Surrogate(Clip(clip_low, clip_high), weight, SequenceRatio()),
        proximal,
        SequenceMean(),
    )


def rloo(
    *,
    max_weight: s.MaxWeight = MAX_WEIGHT,
    proximal: s.Centre = Proximal.RECOMPUTE,
    discount: s.Discount = 1.0,
    kl: s.KLLoss = 0.0,
) -> Algorithm:
    """REINFORCE against the mean of the other siblings; nothing is clipped but the weight."""
    objective = Surrogate(Unbounded(), ImportanceWeight(max_weight), penalties=_penalties(kl, 0.0))
    return Algorithm(LeaveOneOut(discount=discount), objective, proximal)


def reinforce_plus_plus(
    *,
    clip_low: s.ClipLow = CLIP,
    clip_high: s.ClipHigh = CLIP,
    max_weight: s.MaxWeight = MAX_WEIGHT,
    proximal: s.Centre = Proximal.RECOMPUTE,
    discount: s.Discount = 1.0,
    token_discount: s.TokenDiscount = 1.0,
    kl: s.KLReward = 0.0,
) -> Algorithm:
    """Returns, with the KL to the reference in each token's reward, normalised over the batch."""
    return Algorithm(
        BatchNormalised(Returns(discount, token_discount, kl)),
        Surrogate(Clip(clip_low, clip_high), ImportanceWeight(max_weight)),
        proximal,
    )


def reinforce_plus_plus_baseline(
    *,
    clip_low: s.ClipLow = CLIP,
    clip_high: s.ClipHigh = CLIP,
    max_weight: s.MaxWeight = MAX_WEIGHT,
    proximal: s.Centre = Proximal.RECOMPUTE,
    discount: s.Discount = 1.0,
    kl: s.KLLoss = 0.0,
) -> Algorithm:
    """Rewards against the group's mean, normalised over the batch, with the KL (k2) in the loss."""
    region, weight = Clip(clip_low, clip_high), ImportanceWeight(max_weight)
    return Algorithm(
        BatchNormalised(GroupRelative(discount=discount, std=None)),
        Surrogate(region, weight, penalties=_penalties(kl, 0.0, KL.K2)),
        proximal,
    )


def sapo(
    *,
    tau_positive: s.Tau = 1.0,
    tau_negative: s.TauNegative = 1.05,
    max_weight: s.MaxWeight = MAX_WEIGHT,
    proximal: s.Centre = Proximal.RECOMPUTE,
    discount: s.Discount = 1.0,
) -> Algorithm:
    """GRPO with a soft gate in place of the clip: far terms fade instead of stopping."""
    return Algorithm(
        GroupRelative(discount=discount),
        Surrogate(SoftGate(tau_positive, tau_negative), ImportanceWeight(max_weight)),
        proximal,
        SequenceMean(),
    )


def cispo(
    *,
    clip_high: s.ClipHigh = 4.0,
    max_weight: s.MaxWeight = MAX_WEIGHT,
    proximal: s.Centre = Proximal.RECOMPUTE,
    discount: s.Discount = 1.0,
) -> Algorithm:
    """The ratio as a bounded weight: every token keeps its gradient."""
    return Algorithm(
        GroupRelative(discount=discount),
        Surrogate(TruncatedRatio(1.0, clip_high), ImportanceWeight(max_weight)),
        proximal,
    )


def m2po(
    *,
    clip_low: s.ClipLow = CLIP_LOW,
    clip_high: s.ClipHigh = CLIP_HIGH,
    threshold: s.Moment = 0.04,
    proximal: s.Centre = Proximal.RECOMPUTE,
    discount: s.Discount = 1.0,
) -> Algorithm:
    """M2PO, for very stale samples: leaves out tokens until the log-weights' second moment is bounded."""
    return Algorithm(
        GroupRelative(discount=discount),
        Surrogate(
            Clip(clip_low, clip_high), ImportanceWeight(math.inf), screen=SecondMoment(threshold)
        ),
        proximal,
    )


def litepo(
    *,
    clip_low: s.ClipLow = CLIP,
    clip_high: s.ClipHigh = CLIP,
    max_weight: s.MaxWeight = MAX_WEIGHT,
    proximal: s.Centre = Proximal.RECOMPUTE,
    discount: s.Discount = 1.0,
) -> Algorithm:
    """The group's mean, the batch's standard deviation, token mean, and nothing else."""
    return Algorithm(
        GroupRelative(discount=discount, std=BatchStd()),
        Surrogate(Clip(clip_low, clip_high), ImportanceWeight(max_weight)),
        proximal,
    )


def naive_ppo(
    *,
    clip_low: s.ClipLow = CLIP_LOW,
    clip_high: s.ClipHigh = CLIP_HIGH,
    dual_clip: s.DualClip = None,
    discount: s.Discount = 1.0,
) -> Algorithm:
    """GRPO with PPO's own clip, centred on the sampler: for comparison, and for fresh samples."""
    return Algorithm(
        GroupRelative(discount=discount),
        Surrogate(Clip(clip_low, clip_high, dual_clip), NoWeight()),
        Proximal.BEHAVIOUR,
    )


def ppo(
    *,
    clip_low: s.ClipLow = CLIP,
    clip_high: s.ClipHigh = CLIP,
    dual_clip: s.DualClip = None,
    max_weight: s.MaxWeight = MAX_WEIGHT,
    proximal: s.Centre = Proximal.RECOMPUTE,
    discount: s.Discount = 1.0,
    token_discount: s.TokenDiscount = 1.0,
    trace: s.Trace = 1.0,
    critic_learning_rate: s.CriticRate = 1e-4,
    value_clip: s.ValueClip = 0.5,
    kl: s.KLReward = 0.0,
    entropy: s.Entropy = 0.0,
) -> Algorithm:
    """GAE with a critic, advantages normalised over the batch, decoupled clipped surrogate."""
    region, weight = Clip(clip_low, clip_high, dual_clip), ImportanceWeight(max_weight)
    return Algorithm(
        BatchNormalised(GAE(discount, trace, token_discount, kl)),
        Surrogate(region, weight, penalties=_penalties(0.0, entropy)),
        proximal,
        critic=Critic(critic_learning_rate, value_clip),
    )


def areal(
    *,
    clip_low: s.ClipLow = CLIP,
    clip_high: s.ClipHigh = CLIP,
    dual_clip: s.DualClip = None,
    max_weight: s.MaxWeight = MAX_WEIGHT,
    weight_level: s.WeightLevel = Level.TOKEN,
    beyond: s.BeyondMax = Beyond.MASK,
    proximal: s.Centre = Proximal.RECOMPUTE,
    discount: s.Discount = 1.0,
    token_discount: s.TokenDiscount = 1.0,
    kl: s.KLReward = 0.0,
    group_norm: s.GroupNorm = False,
    reward_scale: s.Scale = 10.0,
    reward_bias: s.Bias = -0.5,
    reward_clip: s.RewardClip = 20.0,
    overlong_limit: s.OverlongLimit = 0,
    overlong_margin: s.OverlongMargin = 64,
    overlong_penalty: s.OverlongPenalty = 1.0,
) -> Algorithm:
    """AReaL's own: returns without a critic, normalised over the batch, rewards of 5 and -5, decoupled
    clip, and no weight for tokens that were too unlikely; set `trainer.num_minibatches = 4` with it."""
    if group_norm and (kl or token_discount < 1.0):
        raise ConfigError(
            "group_norm compares whole rewards, before kl or token_discount tell tokens apart: leave "
            "group_norm out, or choose grpo, whose kl is in the loss"
        )
    compared = GroupRelative(discount) if group_norm else Returns(discount, token_discount, kl)
    overlong = _overlong(overlong_limit, overlong_margin, overlong_penalty)
    return Algorithm(
        BatchNormalised(compared),
        Surrogate(
            Clip(clip_low, clip_high, dual_clip), ImportanceWeight(max_weight, weight_level, beyond)
        ),
        proximal,
        shaping=RewardShaping(reward_scale, reward_bias, reward_clip, overlong),
    )


def running_baseline(
    *,
    clip_low: s.ClipLow = CLIP_LOW,
    clip_high: s.ClipHigh = CLIP_HIGH,
    max_weight: s.MaxWeight = MAX_WEIGHT,
    proximal: s.Centre = Proximal.RECOMPUTE,
    discount: s.Discount = 1.0,
    max_surprise: s.MaxSurprise = 5.0,
) -> Algorithm:
    """The running baseline, for episodes that come alone (`areal-sdk serve`, groups of one): no
    siblings to compare with."""
    return Algorithm(
        RunningBaseline(discount=discount, max_surprise=max_surprise),
        Surrogate(Clip(clip_low, clip_high), ImportanceWeight(max_weight)),
        proximal,
    )


def _penalties(kl: float, entropy: float, kind: KL = KL.K3) -> tuple[Penalty, ...]:
    """The penalties whose coefficient is not 0. A penalty that is left out costs neither memory nor time."""
    penalties: list[Penalty] = []
    if kl:
        penalties.append(ReferenceKL(kl, kind))
    if entropy:
        penalties.append(EntropyBonus(entropy))
    return tuple(penalties)


def _overlong(limit: int, margin: int, penalty: float) -> Overlong | None:
    return Overlong(limit, margin, penalty) if limit else None
