"""How much better than expected each trained token's episode (or turn) was.

An estimator takes the groups of one batch and returns, for each trajectory of each group, one
advantage a token. Statistics count *episodes*: an episode with three branches is one value, however
many rows it became, and an incomplete group is compared among those that are there.

Whether an estimator can learn from episodes that have no siblings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from areal_sdk.algorithms.returns import (
    HUGE,
    Floats,
    episodes_of,
    return_at,
    returns_of,
    spread,
    spread_turns,
)
from areal_sdk.trajectory import Trajectory, TrajectoryGroup

Advantages = list[list[Floats]]
"""Per group, per trajectory: one value a token, 0 where nothing is trained."""

Baselines = Mapping[str, Any]
"""Per source: what an estimator remembers of its rewards, as JSON."""

MIN_STD = 1e-6
"""Rewards closer together than this are equal."""


class AdvantageEstimator(Protocol):
    """Advantages of a batch. What it learns about rewards goes through `baselines`, not self."""

    def __call__(
        self, groups: Sequence[TrajectoryGroup], baselines: Baselines
    ) -> tuple[Advantages, Baselines]:
        """The advantages, and the baselines to use next time (checkpointed with the weights)."""


@runtime_checkable
class NamesOutliers(Protocol):
    """An estimator that can say which rewards it did not take at their word."""

    def outliers(
        self, groups: Sequence[TrajectoryGroup], baselines: Baselines
    ) -> Mapping[str, str]:
        """For each source with such a reward in `groups`, a line that names it."""


@dataclass(frozen=True, slots=True)
class GroupRelative:
    """GRPO: an episode's reward against those of its siblings.

    A group of one, or of equal rewards, teaches nothing: its advantages are 0.

    With rewards per turn, a turn's return is compared with the siblings' returns from the same turn
    on. A sibling that ended earlier counts with the return of its last turn, so that a turn which
    only one of them reached is compared too, and taking longer to earn the same gains nothing.
    Turns after the last reward are not trained. Returns are sums: where every turn earns the same
    positive reward, the longer of two episodes earns more, and is preferred for its length alone.

    What siblings did is independent of what was sampled in this turn: comparing with them leaves
    the direction of the expected gradient as it is. Dividing by the standard deviation does not: it
    weighs groups and turns.
    """

    discount: float
    """What a reward is worth to the turn before the one that earned it."""
    divide_by_std: bool = True
    """Off: groups where success is rare or common weigh less than undecided ones."""

    def __call__(
        self, groups: Sequence[TrajectoryGroup], baselines: Baselines
    ) -> tuple[Advantages, Baselines]:
        return [self._group(group) for group in groups], baselines

    def _group(self, group: TrajectoryGroup) -> list[Floats]:
        episodes = episodes_of(group)
        if self.discount == 1.0 and not any(e.turn_rewards for e in episodes.values()):
            scores = self._compare({key: e.reward for key, e in episodes.items()})
            return [spread(t, scores[t.episode_id]) for t in group.trajectories]
        returns = returns_of(group, discount=self.discount)
        num_turns = max(map(len, returns.values()), default=0)
        by_turn = [
            self._compare(
                {
                    key: value
                    for key, values in returns.items()
                    if (value := return_at(values, turn)) is not None
                }
            )
            for turn in range(num_turns)
        ]
        return [
            spread_turns(t, _where_known(returns[t.episode_id], by_turn, t.episode_id))
            for t in group.trajectories
        ]

    def _compare(self, rewards: Mapping[str, float]) -> dict[str, float]:
        """
        >>> GroupRelative(discount=1.0)._compare({"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.0})
        {'a': 1.0, 'b': -1.0, 'c': 1.0, 'd': -1.0}
        >>> GroupRelative(discount=1.0)._compare({"alone": 3.0})
        {'alone': 0.0}
        """
        values = np.array(list(rewards.values()), dtype=np.float64).clip(-HUGE, HUGE)
        if len(values) < 2 or values.std() < MIN_STD:
            return dict.fromkeys(rewards, 0.0)
        centred = values - values.mean()
        if self.divide_by_std:
            centred /= values.std()
        return {key: float(value) for key, value in zip(rewards, centred, strict=True)}


def _where_known(
    returns: Sequence[float | None], by_turn: Sequence[Mapping[str, float]], key: str
) -> list[float]:
    """An episode's own advantages: it may count in turns that it does not have."""
    return [0.0 if value is None else by_turn[turn][key] for turn, value in enumerate(returns)]


_REWARDS = (0.0, 1.0, 1.0, 0.0)


def learns_alone(estimator: AdvantageEstimator) -> bool:
    """Whether episodes that come one by one get an advantage: tried, so that it holds for any.

    >>> from areal_sdk.algorithms.advantages import GroupRelative
    >>> from areal_sdk.algorithms.running import RunningBaseline
    >>> learns_alone(GroupRelative(discount=1.0))
    False
    >>> learns_alone(RunningBaseline(discount=1.0, max_surprise=5.0))
    True
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
