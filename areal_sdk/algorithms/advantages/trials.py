"""The properties of an estimator, found by trying it. So a plugin's estimator need not declare them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from areal_sdk.algorithms.advantages.estimator import (
    AdvantageEstimator,
    Evidence,
    PerToken,
)
from areal_sdk.trainer import IdleGroups
from areal_sdk.trajectory import Trajectory, TrajectoryGroup

_REWARDS = (0.0, 1.0, 1.0, 0.0)


def learns_alone(estimator: AdvantageEstimator) -> bool:
    """Whether episodes that come one by one get an advantage.

    >>> from areal_sdk.algorithms.advantages import GroupRelative, RunningBaseline
    >>> learns_alone(GroupRelative(discount=1.0))
    False
    >>> learns_alone(RunningBaseline(discount=1.0, max_surprise=5.0))
    True
    """
    alone = [_group(str(n), (reward,)) for n, reward in enumerate(_REWARDS)]
    return _teaches(estimator, alone)


def idle_groups(estimator: AdvantageEstimator) -> IdleGroups:
    """Which groups teach nothing.

    >>> from areal_sdk.algorithms.advantages import GroupRelative, RunningBaseline
    >>> idle_groups(GroupRelative(discount=1.0)), idle_groups(GroupRelative(discount=0.9))
    (<IdleGroups.EQUAL_REWARDS: 'equal_rewards'>, <IdleGroups.EQUAL_EPISODES: 'equal_episodes'>)
    >>> idle_groups(RunningBaseline(discount=1.0, max_surprise=5.0))
    <IdleGroups.NONE: 'none'>
    """
    equal = [_group(str(n), (reward, reward)) for n, reward in enumerate(_REWARDS)]
    if _teaches(estimator, equal):
        return IdleGroups.NONE
    uneven = [_group(str(n), (reward, reward), turns=(1, 3)) for n, reward in enumerate(_REWARDS)]
    return IdleGroups.EQUAL_EPISODES if _teaches(estimator, uneven) else IdleGroups.EQUAL_REWARDS


def gives_returns(estimator: AdvantageEstimator) -> bool:
    """Whether there is something for a critic to learn.

    >>> from areal_sdk.algorithms.advantages import GAE, GroupRelative
    >>> gives_returns(GAE(discount=1.0, trace=1.0)), gives_returns(GroupRelative(discount=1.0))
    (True, False)
    """
    groups = [_group("0", (0.0, 1.0))]
    return estimator(groups, _evidence(groups)).returns is not None


def _teaches(estimator: AdvantageEstimator, groups: Sequence[TrajectoryGroup]) -> bool:
    evidence = _evidence(groups)
    baselines = estimator(groups, evidence).baselines  # there may be a baseline to find first
    advantages = estimator(groups, replace(evidence, baselines=baselines)).advantages
    return any(value != 0 for group in advantages for row in group for value in row.tolist())


def _evidence(groups: Sequence[TrajectoryGroup]) -> Evidence:
    def zeros() -> PerToken:
        return [[np.zeros(len(t.tokens), np.float32) for t in g.trajectories] for g in groups]

    return Evidence({}, zeros(), zeros())


def _group(
    name: str, rewards: Sequence[float], *, turns: Sequence[int] = (1, 1)
) -> TrajectoryGroup:
    trajectories = (
        _trajectory(f"{name}-{sibling}", reward, count)
        for sibling, (reward, count) in enumerate(zip(rewards, turns, strict=False))
    )
    return TrajectoryGroup(name, "caller", tuple(trajectories))


def _trajectory(episode_id: str, reward: float, turns: int) -> Trajectory:
    """Each turn is a token that was given and one that was sampled."""
    return Trajectory(
        episode_id=episode_id,
        task_id="caller",
        tokens=(1, 2) * turns,
        loss_mask=(False, True) * turns,
        logprobs=(0.0, -1.0) * turns,
        versions=(-1, 0) * turns,
        temperatures=(1.0, 1.0) * turns,
        turn_of_token=tuple(t for turn in range(turns) for t in (-1, turn)),
        reward=reward,
    )
