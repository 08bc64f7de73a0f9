"""The contract of an advantage estimator: groups and evidence in, one number a token out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from areal_sdk.algorithms.advantages.returns import Floats
from areal_sdk.trajectory import TrajectoryGroup

PerToken = list[list[Floats]]
"""Per group, per trajectory: one value a token, 0 where nothing is trained."""

Baselines = Mapping[str, Any]
"""Per source: what an estimator remembers of its rewards, as JSON."""

MIN_STD = 1e-6
"""Rewards closer together than this are equal."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What an estimator may read beside the groups. All ranks have the same."""

    baselines: Baselines = field(default_factory=dict)
    """What the estimator returned last time; checkpointed with the weights."""
    values: PerToken | None = None
    """The critic's value of the state that each trained token was sampled in (`needs.values`)."""
    reference: PerToken | None = None
    """The logprob of each trained token under the reference (`needs.reference`)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    advantages: PerToken
    baselines: Baselines = field(default_factory=dict)
    """To be used next time."""
    returns: PerToken | None = None
    """What the values should have been, where the estimator says so."""


class AdvantageEstimator(Protocol):
    """How much better than expected each trained token turned out.

    A frozen spec: what it learns about rewards goes through baselines, not self.
    """

    def __call__(self, groups: Sequence[TrajectoryGroup], evidence: Evidence) -> Estimate: ...


@runtime_checkable
class NamesOutliers(Protocol):
    """An estimator that can say which rewards it did not take at their word."""

    def outliers(
        self, groups: Sequence[TrajectoryGroup], baselines: Baselines
    ) -> Mapping[str, str]:
        """For each source with such a reward in `groups`, a line that names it."""
