"""The contract of an advantage estimator: groups and evidence in, one number a token out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from areal_sdk.algorithms.advantages.returns import Floats
from areal_sdk.trajectory import Credit, Trajectory, TrajectoryGroup

PerToken = list[list[Floats]]
"""One value a token, 0 where nothing is trained, by group and trajectory."""

Baselines = Mapping[str, Any]
"""The memory of an estimator for each source, as JSON."""

MIN_STD = 1e-6
"""Distance of rewards below which they are equal."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The data that an estimator may read beside the groups. All ranks have the same data."""

    baselines: Baselines = field(default_factory=dict)
    """The state that the estimator returned last time; checkpointed with the weights."""
    values: PerToken | None = None
    """The critic's value of the state that each trained token was sampled in (`needs.values`)."""
    reference: PerToken | None = None
    """The logprob of each trained token under the reference (`needs.reference`)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    advantages: PerToken
    baselines: Baselines = field(default_factory=dict)
    """Baselines for the next estimate."""
    returns: PerToken | None = None
    """The targets of the values, if the estimator gives them."""


class AdvantageEstimator(Protocol):
    """The estimator of advantages: how much better than expected each trained token turned out.

    It is a frozen spec: its memory goes through baselines, not self.
    """

    def __call__(self, groups: Sequence[TrajectoryGroup], evidence: Evidence) -> Estimate: ...


@runtime_checkable
class NamesOutliers(Protocol):
    """An estimator that can name the rewards that it bounded."""

    def outliers(
        self, groups: Sequence[TrajectoryGroup], baselines: Baselines
    ) -> Mapping[str, str]:
        """A line for each source that posted an outlying reward in `groups`. The line names the reward."""


def credit_of_episodes(
    groups: Sequence[TrajectoryGroup], advantages: PerToken
) -> dict[str, Credit]:
    """The credit of every episode in `groups`, by its id. It is for people; training uses advantages per token."""
    rows: dict[str, list[tuple[Trajectory, Floats]]] = {}
    for group, of_group in zip(groups, advantages, strict=True):
        for trajectory, row in zip(group.trajectories, of_group, strict=True):
            rows.setdefault(trajectory.episode_id, []).append((trajectory, row))
    return {episode_id: _credit(of_episode) for episode_id, of_episode in rows.items()}


def _credit(rows: Iterable[tuple[Trajectory, Floats]]) -> Credit:
    turns, values = [], []
    for trajectory, row in rows:
        turns.append(trajectory.turn_of_token[trajectory.loss_mask])
        values.append(np.asarray(row, dtype=np.float64)[trajectory.loss_mask])
    turn_of_term, advantage_of_term = np.concatenate(turns), np.concatenate(values)
    if not len(turn_of_term):
        return Credit()
    counts = np.bincount(turn_of_term)
    sums = np.bincount(turn_of_term, weights=advantage_of_term)
    return Credit(
        float(advantage_of_term.mean()),
        tuple(
            float(total / count) if count else None
            for total, count in zip(sums, counts, strict=True)
        ),
    )
