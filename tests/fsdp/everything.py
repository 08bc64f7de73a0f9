"""An algorithm that uses every part that looks beyond its own micro-batch, or needs another model."""

import math

from areal_sdk.algorithms import (
    GAE,
    Algorithm,
    BatchNormalised,
    Clip,
    Critic,
    EntropyBonus,
    ImportanceWeight,
    Level,
    ReferenceKL,
    SecondMoment,
    SequenceMean,
    SequenceRatio,
    Surrogate,
)


def everything() -> Algorithm:
    return Algorithm(
        BatchNormalised(GAE(discount=0.9, trace=0.95, kl=0.1)),
        Surrogate(
            Clip(0.1, 0.2, dual=3.0),
            ImportanceWeight(math.inf, Level.SEQUENCE),
            SequenceRatio(),
            SecondMoment(0.5),
            (ReferenceKL(0.1), EntropyBonus(0.01)),
        ),
        aggregation=SequenceMean(),
        critic=Critic(1e-3, clip=0.5),
    )
