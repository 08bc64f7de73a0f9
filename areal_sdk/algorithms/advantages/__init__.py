"""Advantages: how much better than expected the episode or turn of each trained token was.

An estimator takes the groups of one batch and returns, for each trajectory of each group, one
advantage a token. Statistics count *episodes*: an episode with three branches is one value, and the
episodes of an incomplete group are compared with one another. Only `BatchNormalised` counts tokens.
"""

from areal_sdk.algorithms.advantages.credit import GAE, Returns
from areal_sdk.algorithms.advantages.estimator import (
    AdvantageEstimator,
    Baselines,
    Estimate,
    Evidence,
    NamesOutliers,
    PerToken,
    credit_of_episodes,
)
from areal_sdk.algorithms.advantages.group import (
    BatchNormalised,
    BatchStd,
    GroupRelative,
    GroupStd,
    LeaveOneOut,
    compare_siblings,
)
from areal_sdk.algorithms.advantages.returns import turn_returns
from areal_sdk.algorithms.advantages.running import RunningBaseline
from areal_sdk.algorithms.advantages.trials import gives_returns, idle_groups, learns_alone

__all__ = [
    "GAE",
    "AdvantageEstimator",
    "Baselines",
    "BatchNormalised",
    "BatchStd",
    "Estimate",
    "Evidence",
    "GroupRelative",
    "GroupStd",
    "LeaveOneOut",
    "NamesOutliers",
    "PerToken",
    "Returns",
    "RunningBaseline",
    "compare_siblings",
    "credit_of_episodes",
    "gives_returns",
    "idle_groups",
    "learns_alone",
    "turn_returns",
]
