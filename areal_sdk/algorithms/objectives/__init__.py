"""Losses as one number a term, so that any aggregation, micro-batch and rank adds up exactly.

No module here imports torch: specs are made and checked in the main process, which has none, and
functions of tensors use the tensors' own methods.
"""

from areal_sdk.algorithms.objectives.off_policy import (
    Beyond,
    ImportanceWeight,
    Level,
    NoWeight,
    OffPolicyWeight,
    SecondMoment,
)
from areal_sdk.algorithms.objectives.penalties import (
    KL,
    EntropyBonus,
    Penalty,
    ReferenceKL,
    kl_estimate,
)
from areal_sdk.algorithms.objectives.regions import (
    Clip,
    Gain,
    Proximal,
    SoftGate,
    TruncatedRatio,
    TrustRegion,
    Unbounded,
    interpolate,
)
from areal_sdk.algorithms.objectives.surrogate import (
    Ratio,
    SequenceRatio,
    SequenceTokenRatio,
    Surrogate,
    TokenRatio,
)
from areal_sdk.algorithms.objectives.terms import (
    Critic,
    Loss,
    Objective,
    PolicyTerms,
    Screens,
    given,
    imitation,
    masked,
    sequence_means,
)

__all__ = [
    "Beyond",
    "Clip",
    "Critic",
    "EntropyBonus",
    "Gain",
    "ImportanceWeight",
    "KL",
    "Level",
    "Loss",
    "NoWeight",
    "Objective",
    "OffPolicyWeight",
    "Penalty",
    "PolicyTerms",
    "Proximal",
    "Ratio",
    "ReferenceKL",
    "Screens",
    "SecondMoment",
    "SequenceRatio",
    "SequenceTokenRatio",
    "SoftGate",
    "Surrogate",
    "TokenRatio",
    "TruncatedRatio",
    "TrustRegion",
    "Unbounded",
    "given",
    "imitation",
    "interpolate",
    "kl_estimate",
    "masked",
    "sequence_means",
]
