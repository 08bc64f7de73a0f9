"""Whether an estimator can learn from episodes that have no siblings."""

from collections.abc import Sequence

from areal_sdk.algorithms.advantages import AdvantageEstimator, Baselines
from areal_sdk.types import Trajectory, TrajectoryGroup

_REWARDS = (0.0, 1.0, 1.0, 0.0)


def learns_alone(estimator: AdvantageEstimator) -> bool:
    """Whether episodes that come one by one get an advantage: tried, so that it holds for any.

    >>> from areal_sdk.algorithms.advantages import GroupRelative
    >>> from areal_sdk.algorithms.running import RunningBaseline
    >>> learns_alone(GroupRelative()), learns_alone(RunningBaseline())
    (False, True)
    """
    baselines: Baselines = {}
    _, baselines = estimator(_groups_of_one(), baselines)  # there may be a baseline to find first
    advantages, _ = estimator(_groups_of_one(), baselines)
    return any(value != 0 for group in advantages for row in group for value in row.tolist())


def _groups_of_one() -> Sequence[TrajectoryGroup]:
    return [
        TrajectoryGroup(str(number), "caller", (_trajectory(str(number), reward),))
        for number, reward in enumerate(_REWARDS)
    ]


def _trajectory(episode_id: str, reward: float) -> Trajectory:
    return Trajectory(
        episode_id=episode_id,
        task_id="caller",
        tokens=(1, 2),
        loss_mask=(False, True),
        logprobs=(0.0, -1.0),
        versions=(-1, 0),
        temperatures=(1.0, 1.0),
        turn_of_token=(-1, 0),
        reward=reward,
    )
