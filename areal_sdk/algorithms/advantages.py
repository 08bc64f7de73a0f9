"""How much better than expected each trained token's episode (or turn) was.

An estimator takes the groups of one batch and returns, for each trajectory of each group, one
advantage a token. Statistics count *episodes*: an episode with three branches is one value, however
many rows it became, and an incomplete group is compared among those that are there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from areal_sdk.types import Trajectory, TrajectoryGroup

Floats = NDArray[np.float32]

Advantages = list[list[Floats]]
"""Per group, per trajectory: one value a token, 0 where nothing is trained."""

Baselines = Mapping[str, tuple[float, float]]
"""Per source: the mean of its rewards so far, and how many rewards that mean is worth."""

MIN_STD = 1e-6
"""Rewards closer together than this are equal."""


class AdvantageEstimator(Protocol):
    """Advantages of a batch. What it learns about rewards goes through `baselines`, not self."""

    def __call__(
        self, groups: Sequence[TrajectoryGroup], baselines: Baselines
    ) -> tuple[Advantages, Baselines]:
        """The advantages, and the baselines to use next time (checkpointed with the weights)."""


@dataclass(frozen=True, slots=True)
class GroupRelative:
    """GRPO: an episode's reward against those of its siblings.

    A group of one, or of equal rewards, teaches nothing: its advantages are 0. With rewards per
    turn, a turn's return (its reward and those of its consequences, undiscounted) is compared with
    the siblings' returns from the same turn; turns after the last reward are not trained.
    """

    divide_by_std: bool = True
    """Off: groups where success is rare or common weigh less than undecided ones."""

    def __call__(
        self, groups: Sequence[TrajectoryGroup], baselines: Baselines
    ) -> tuple[Advantages, Baselines]:
        return [self._group(group) for group in groups], baselines

    def _group(self, group: TrajectoryGroup) -> list[Floats]:
        episodes = _episodes(group)
        if not any(e.turn_rewards for e in episodes.values()):
            scores = self._compare({key: e.reward for key, e in episodes.items()})
            return [_spread(t, scores[t.episode_id]) for t in group.trajectories]
        num_turns_of = _num_turns(group)
        returns = {key: turn_returns(e, num_turns_of[key]) for key, e in episodes.items()}
        num_turns = max(len(values) for values in returns.values())
        by_turn = [
            self._compare(
                {
                    key: value
                    for key, values in returns.items()
                    if turn < len(values) and (value := values[turn]) is not None
                }
            )
            for turn in range(num_turns)
        ]
        return [
            _spread_turns(t, [scores.get(t.episode_id, 0.0) for scores in by_turn])
            for t in group.trajectories
        ]

    def _compare(self, rewards: Mapping[str, float]) -> dict[str, float]:
        """
        >>> GroupRelative()._compare({"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.0})
        {'a': 1.0, 'b': -1.0, 'c': 1.0, 'd': -1.0}
        >>> GroupRelative()._compare({"alone": 3.0})
        {'alone': 0.0}
        """
        values = np.array(list(rewards.values()), dtype=np.float64)
        if len(values) < 2 or values.std() < MIN_STD:
            return dict.fromkeys(rewards, 0.0)
        centred = values - values.mean()
        if self.divide_by_std:
            centred /= values.std()
        return {key: float(value) for key, value in zip(rewards, centred, strict=True)}


@dataclass(frozen=True, slots=True)
class RunningBaseline:
    """For callers that come alone: a reward against what its source usually gets.

    The source is the task id: of live traffic, who calls. The first reward of a source is compared
    with nothing and so teaches nothing. The batch is then scaled to unit spread (never centred: a
    batch of successes stays good news). Only episode rewards are used.
    """

    memory: float = 100.0
    """Rewards a source's baseline remembers; older ones fade."""

    def __call__(
        self, groups: Sequence[TrajectoryGroup], baselines: Baselines
    ) -> tuple[Advantages, Baselines]:
        known = dict(baselines)
        surprises: list[dict[str, float]] = []
        for group in groups:
            rewards = {key: e.reward for key, e in _episodes(group).items()}
            mean, weight = known.get(group.task_id, (0.0, 0.0))
            # Every episode of the group is judged before any of them moves the baseline.
            surprises.append({k: r - mean if weight else 0.0 for k, r in rewards.items()})
            for reward in rewards.values():
                weight = min(weight + 1.0, self.memory)
                mean += (reward - mean) / weight
            known[group.task_id] = (mean, weight)
        flat = np.array([value for values in surprises for value in values.values()])
        scale = float(np.sqrt(np.mean(flat**2))) if len(flat) else 0.0
        if scale < MIN_STD:
            scale = 1.0
        return [
            [_spread(t, values[t.episode_id] / scale) for t in group.trajectories]
            for group, values in zip(groups, surprises, strict=True)
        ], known


def turn_returns(trajectory: Trajectory, num_turns: int = 1) -> list[float | None]:
    """For each turn, its reward and those of its consequences; None where none of them was scored.

    Those are all later turns, but for other answers to the same prompt and what came of them.

    >>> from areal_sdk.types import Trajectory
    >>> def rewarded(*turn_rewards):
    ...     return Trajectory("e", "t", (), (), (), (), (), (), 0.0, turn_rewards)
    >>> turn_returns(rewarded(0.5, None, 1.0, None))
    [1.5, 1.0, 1.0, None]

    A reward for the whole episode was earned by its end: it is the return of every turn.

    >>> turn_returns(rewarded(), num_turns=3)
    [0.0, 0.0, 0.0]
    """
    if not trajectory.turn_rewards:
        return [trajectory.reward] * num_turns
    if trajectory.turn_rivals:
        rewards = list(enumerate(trajectory.turn_rewards))
        return [
            _total(reward for turn, reward in rewards[index:] if turn not in rivals)
            for index, rivals in enumerate(trajectory.turn_rivals)
        ]
    returns: list[float | None] = []
    following: float | None = None
    for reward in reversed(trajectory.turn_rewards):
        if reward is not None:
            following = reward + (following or 0.0)
        returns.append(following)
    return returns[::-1]


def _total(rewards: Iterable[float | None]) -> float | None:
    given = [reward for reward in rewards if reward is not None]
    return sum(given) if given else None


def _episodes(group: TrajectoryGroup) -> dict[str, Trajectory]:
    """One trajectory for each episode: reward and turn rewards are the same on all its branches."""
    first: dict[str, Trajectory] = {}
    for trajectory in group.trajectories:
        known = first.setdefault(trajectory.episode_id, trajectory)
        if known.reward != trajectory.reward:
            raise ValueError(
                f"branches of episode {trajectory.episode_id!r} have different rewards: "
                f"{known.reward} and {trajectory.reward}"
            )
    return first


def _num_turns(group: TrajectoryGroup) -> dict[str, int]:
    """How many turns each episode is known to have, over all its branches."""
    found: dict[str, int] = {}
    for trajectory in group.trajectories:
        last = max(trajectory.turn_of_token, default=0)
        key = trajectory.episode_id
        found[key] = max(found.get(key, 1), int(last) + 1)
    return found


def _spread(trajectory: Trajectory, advantage: float) -> Floats:
    return np.where(
        np.asarray(trajectory.loss_mask, dtype=bool), np.float32(advantage), 0.0
    ).astype(np.float32)


def _spread_turns(trajectory: Trajectory, by_turn: Sequence[float]) -> Floats:
    def value(turn: int) -> float:
        return by_turn[turn] if turn < len(by_turn) else 0.0

    turns: Iterable[int] = trajectory.turn_of_token
    per_token = np.array([value(turn) if turn >= 0 else 0.0 for turn in turns], dtype=np.float32)
    mask = np.asarray(trajectory.loss_mask, dtype=bool)
    return np.where(mask, per_token, np.float32(0.0)).astype(np.float32)
