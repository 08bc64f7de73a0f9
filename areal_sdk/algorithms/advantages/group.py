"""An episode's reward against those of its siblings: GRPO and its relatives; advantages normalised over the batch."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from areal_sdk.algorithms.advantages.estimator import (
    MIN_STD,
    AdvantageEstimator,
    Estimate,
    Evidence,
)
from areal_sdk.algorithms.advantages.returns import (
    HUGE,
    Floats,
    bounded,
    episodes_of,
    return_at,
    returns_of,
    scored_tokens,
    spread,
    spread_turns,
)
from areal_sdk.algorithms.needs import Needs, needs_of
from areal_sdk.trajectory import TrajectoryGroup

Values = NDArray[np.float64]

Compare = Callable[[Mapping[str, float]], dict[str, float]]
"""Function from the siblings' returns to their advantages, both by episode."""


@dataclass(frozen=True, slots=True)
class GroupStd:
    """The standard deviation of the siblings' rewards."""

    unbiased: bool = False
    """Whether the variance is divided by the number of siblings minus one."""


@dataclass(frozen=True, slots=True)
class BatchStd:
    """The standard deviation of all rewards of the batch: one scale for all groups."""

    unbiased: bool = False


@dataclass(frozen=True, slots=True)
class GroupRelative:
    """GRPO: compares an episode's reward with the rewards of its siblings.

    Shao et al. 2024, arXiv 2402.03300; without the standard deviation it is Dr.GRPO, Liu et al. 2025, arXiv 2503.20783;
    with the standard deviation of the batch it is Lite PPO, Liu et al. 2025, arXiv 2508.08221.

    A group of one, or of equal rewards, teaches nothing: its advantages are 0.

    With rewards per turn, a turn's return is compared with the siblings' returns from the same turn
    on. A sibling that ended earlier counts with the return of its last turn. So a turn that only one
    sibling reached is compared too, and an episode gains nothing by taking longer for the same reward.
    Turns after the last reward are not trained. Returns are sums: if every turn earns the same positive
    reward, the longer of two episodes earns more, and training prefers it for its length alone.

    The siblings' episodes do not depend on the tokens sampled in this turn. Therefore the comparison
    does not change the direction of the expected gradient. Dividing by the standard deviation does
    change it: groups and turns get different weights.
    """

    discount: float
    """Discount a turn: a reward that comes n turns later counts `discount`^n."""
    std: GroupStd | BatchStd | None = field(default_factory=GroupStd)
    """The divisor of centred rewards. None (Dr.GRPO): groups where success is rare or common
    weigh less than undecided ones."""

    def __call__(self, groups: Sequence[TrajectoryGroup], evidence: Evidence) -> Estimate:
        scale = 1.0
        if isinstance(self.std, BatchStd):
            scale = _std(_all_returns(groups, self.discount), unbiased=self.std.unbiased)

        def compare(rewards: Mapping[str, float]) -> dict[str, float]:
            return self._compare(rewards, scale)

        advantages = [compare_siblings(group, self.discount, compare) for group in groups]
        return Estimate(advantages, evidence.baselines)

    def _compare(self, rewards: Mapping[str, float], scale: float = 1.0) -> dict[str, float]:
        """The advantage of each sibling by id; 0 for all if there is nothing to compare.

        >>> GroupRelative(discount=1.0)._compare({"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.0})
        {'a': 1.0, 'b': -1.0, 'c': 1.0, 'd': -1.0}
        >>> GroupRelative(discount=1.0)._compare({"alone": 3.0})
        {'alone': 0.0}
        """
        values = _clipped(rewards.values())
        if len(values) < 2 or values.std() < MIN_STD:
            return dict.fromkeys(rewards, 0.0)
        if isinstance(self.std, GroupStd):
            scale = _std(values, unbiased=self.std.unbiased)
        centred = (values - values.mean()) / scale
        return {key: float(value) for key, value in zip(rewards, centred, strict=True)}


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """RLOO: the reward of an episode minus the mean reward of its siblings, without the episode itself.

    Ahmadian et al. 2024, arXiv 2402.14740. The mean does not depend on the episode, so the gradient keeps its direction.
    """

    discount: float

    def __call__(self, groups: Sequence[TrajectoryGroup], evidence: Evidence) -> Estimate:
        advantages = [compare_siblings(group, self.discount, self._compare) for group in groups]
        return Estimate(advantages, evidence.baselines)

    def _compare(self, rewards: Mapping[str, float]) -> dict[str, float]:
        """The advantage of each sibling by id: its reward minus the mean of the others.

        >>> LeaveOneOut(discount=1.0)._compare({"a": 3.0, "b": 0.0, "c": 0.0})
        {'a': 3.0, 'b': -1.5, 'c': -1.5}
        """
        values = _clipped(rewards.values())
        count = len(values)
        if count < 2 or values.std() < MIN_STD:
            return dict.fromkeys(rewards, 0.0)
        scores = (values - values.mean()) * (count / (count - 1))
        return {key: float(value) for key, value in zip(rewards, scores, strict=True)}


def compare_siblings(group: TrajectoryGroup, discount: float, compare: Compare) -> list[Floats]:
    """The advantages of a group whose siblings `compare` judges: whole episodes, or turn by turn."""
    episodes = episodes_of(group)
    if discount == 1.0 and not any(e.turn_rewards for e in episodes.values()):
        scores = compare({key: e.reward for key, e in episodes.items()})
        return [spread(t, scores[t.episode_id]) for t in group.trajectories]
    returns = returns_of(group, discount=discount)
    num_turns = max(map(len, returns.values()), default=0)
    by_turn = [
        compare(
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


def _where_known(
    returns: Sequence[float | None], by_turn: Sequence[Mapping[str, float]], key: str
) -> list[float]:
    """The advantages of the turns that the episode `key` has, from the comparisons of each turn. 0 for a turn without a
    return."""
    return [0.0 if value is None else by_turn[turn][key] for turn, value in enumerate(returns)]


def _all_returns(groups: Sequence[TrajectoryGroup], discount: float) -> Values:
    """The values by which siblings are compared: a reward an episode, or a return a turn."""
    found: list[float] = []
    for group in groups:
        episodes = episodes_of(group)
        if discount == 1.0 and not any(e.turn_rewards for e in episodes.values()):
            found += [bounded(e.reward) for e in episodes.values()]
        else:
            returns = returns_of(group, discount=discount).values()
            found += [value for row in returns for value in row if value is not None]
    return np.array(found, dtype=np.float64)


def _clipped(rewards: Iterable[float]) -> Values:
    return np.array(list(rewards), dtype=np.float64).clip(-HUGE, HUGE)


def _std(values: Values, *, unbiased: bool) -> float:
    """The standard deviation, at least `MIN_STD`: nothing is divided by zero."""
    if len(values) < 2:
        return 1.0
    return max(float(values.std(ddof=int(unbiased))), MIN_STD)


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
