"""The properties of an estimator, found by trying it. So a plugin's estimator need not declare them."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from areal_sdk.algorithms.advantages.estimator import AdvantageEstimator, Evidence, PerToken
from areal_sdk.trainer import IdleGroups
from areal_sdk.trajectory import Trajectory, TrajectoryGroup

_REWARDS = (0.0, 1.0, 1.0, 0.0)


def learns_alone(estimator: AdvantageEstimator) -> bool:
    """Whether episodes that come one by one, each with a task of its own, get an advantage.

    >>> from areal_sdk.algorithms.advantages import GroupRelative, RunningBaseline
    >>> learns_alone(GroupRelative(discount=1.0))
    False
    >>> learns_alone(RunningBaseline(discount=1.0, max_surprise=5.0))
    True
    """
    return _teaches(estimator, [(reward,) for reward in _REWARDS])


def idle_groups(estimator: AdvantageEstimator) -> IdleGroups:
    """The kind of groups from which an estimator learns nothing.

    >>> from areal_sdk.algorithms.advantages import GroupRelative, RunningBaseline
    >>> idle_groups(GroupRelative(discount=1.0)), idle_groups(GroupRelative(discount=0.9))
    (<IdleGroups.EQUAL_REWARDS: 'equal_rewards'>, <IdleGroups.EQUAL_EPISODES: 'equal_episodes'>)
    >>> idle_groups(RunningBaseline(discount=1.0, max_surprise=5.0))
    <IdleGroups.NONE: 'none'>
    """
    equal = [(reward, reward) for reward in _REWARDS]
    if _teaches(estimator, equal):
        return IdleGroups.NONE
    is_uneven_idle = not _teaches(estimator, equal, turns=(1, 3))
    return IdleGroups.EQUAL_REWARDS if is_uneven_idle else IdleGroups.EQUAL_EPISODES


def gives_returns(estimator: AdvantageEstimator) -> bool:
    """Whether there is something for a critic to learn.

    >>> from areal_sdk.algorithms.advantages import GAE, GroupRelative
    >>> gives_returns(GAE(discount=1.0, trace=1.0)), gives_returns(GroupRelative(discount=1.0))
    (True, False)
    """
    groups = [_group("0", (0.0, 1.0))]
    return estimator(groups, _evidence(groups)).returns is not None


def _teaches(
    estimator: AdvantageEstimator,
    rewards: Sequence[Sequence[float]],
    *,
    turns: Sequence[int] = (1, 1),
) -> bool:
    """Whether groups with these rewards get an advantage. No task comes twice, as in an endless stream."""
    first, second = (
        [_group(f"{n}-{which}", of_group, turns=turns) for n, of_group in enumerate(rewards)]
        for which in ("first", "second")
    )
    baselines = estimator(
        first, _evidence(first)
    ).baselines  # there may be a baseline to find first
    evidence = replace(_evidence(second), baselines=baselines)
    advantages = estimator(second, evidence).advantages
    return any(value != 0 for group in advantages for row in group for value in row.tolist())


def _evidence(groups: Sequence[TrajectoryGroup]) -> Evidence:
    def zeros() -> PerToken:
        return [[np.zeros(len(t.tokens), np.float32) for t in g.trajectories] for g in groups]

    return Evidence({}, zeros(), zeros())


def _group(
    name: str, rewards: Sequence[float], *, turns: Sequence[int] = (1, 1)
) -> TrajectoryGroup:
    trajectories = (
        _trajectory(f"{name}-{sibling}", name, reward, count)
        for sibling, (reward, count) in enumerate(zip(rewards, turns, strict=False))
    )
    return TrajectoryGroup(name, name, tuple(trajectories), "source")


def _trajectory(episode_id: str, task_id: str, reward: float, turns: int) -> Trajectory:
    """A trajectory in which each turn is one given token and one sampled token."""
    return Trajectory(
        episode_id=episode_id,
        task_id=task_id,
        tokens=(1, 2) * turns,
        loss_mask=(False, True) * turns,
        logprobs=(0.0, -1.0) * turns,
        versions=(-1, 0) * turns,
        temperatures=(1.0, 1.0) * turns,
        turn_of_token=tuple(t for turn in range(turns) for t in (-1, turn)),
        reward=reward,
    )
