"""Advantages in units of the batch: REINFORCE++, and PPO as it is commonly run."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from areal_sdk.algorithms.advantages.estimator import (
    MIN_STD,
    AdvantageEstimator,
    Estimate,
    Evidence,
)
from areal_sdk.algorithms.advantages.returns import scored_tokens
from areal_sdk.algorithms.needs import Needs, needs_of
from areal_sdk.trajectory import TrajectoryGroup


@dataclass(frozen=True, slots=True)
class BatchNormalised:
    """The advantages of another estimator, minus their mean, over their standard deviation.

    Hu et al. 2025, REINFORCE++, arXiv 2501.03262.

    Mean and deviation are those of all trained tokens of the batch whose turn has a return. Turns after the last
    reward have none, and are not trained. There is one scale for all sources: if the rewards of one source are a
    hundred times larger, the other sources learn a hundredth.
    """

    of: AdvantageEstimator

    @property
    def needs(self) -> Needs:
        return needs_of(self.of)

    def __call__(self, groups: Sequence[TrajectoryGroup], evidence: Evidence) -> Estimate:
        estimate = self.of(groups, evidence)
        masks = [scored_tokens(group) for group in groups]
        rows = [
            row[mask].astype(np.float64)
            for of_group, of_masks in zip(estimate.advantages, masks, strict=True)
            for row, mask in zip(of_group, of_masks, strict=True)
        ]
        values = np.concatenate(rows) if rows else np.zeros(0)
        mean, std = (values.mean(), values.std()) if len(values) else (0.0, 0.0)

        def normalise(row: np.ndarray, mask: np.ndarray) -> np.ndarray:
            if std < MIN_STD:
                return np.zeros_like(row)
            return np.where(mask, (row - mean) / std, 0.0).astype(np.float32)

        return replace(
            estimate,
            advantages=[
                [normalise(row, mask) for row, mask in zip(of_group, of_masks, strict=True)]
                for of_group, of_masks in zip(estimate.advantages, masks, strict=True)
            ],
        )
