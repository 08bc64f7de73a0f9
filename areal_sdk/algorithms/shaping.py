"""Rewards on their way to an estimator: bias, scale, bounds, and a penalty for long answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from areal_sdk.algorithms.advantages.returns import turn_returns
from areal_sdk.errors import ConfigError
from areal_sdk.trajectory import Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Overlong:
    """A soft limit: the penalty grows over the last `margin` tokens before `limit`.

    >>> soft = Overlong(limit=100, margin=20, penalty=1.0)
    >>> soft(80), soft(90), soft(100), soft(500)
    (0.0, -0.5, -1.0, -1.0)
    """

    limit: int
    """Sampled tokens of an episode at which the whole penalty is due."""
    margin: int
    penalty: float

    def __post_init__(self) -> None:
        if not 0 < self.margin <= self.limit:
            raise ConfigError(
                f"overlong margin = {self.margin}: give 1 to {self.limit} tokens, the limit"
            )
        if self.penalty <= 0:
            raise ConfigError(f"overlong penalty = {self.penalty}: give a positive number")

    def __call__(self, num_tokens: int) -> float:
        """The penalty of an episode of so many sampled tokens, as a number to add."""
        excess = num_tokens - (self.limit - self.margin)
        return self.penalty * max(min(-excess / self.margin, 0.0), -1.0)


@dataclass(frozen=True, slots=True)
class RewardShaping:
    """(reward + overlong + bias) * scale, bounded by `clip`.

    With rewards of turns, what is shaped is a turn's return: the sum of its reward and of those of its
    consequences. So an episode of many rewarded turns has no more of the bias than one of a single
    reward. The overlong penalty is due with the last rewarded turn.
    Estimators and their baselines see shaped rewards; metrics, ledger and dynamic sampling see the
    rewards as they were given.
    """

    scale: float = 1.0
    bias: float = 0.0
    clip: float | None = None
    """Shaped rewards beyond this, up or down, count as this."""
    overlong: Overlong | None = None

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ConfigError(f"reward scale = {self.scale}: give a positive number")
        if self.clip is not None and self.clip <= 0:
            raise ConfigError(f"reward clip = {self.clip}: give a positive number")

    def __call__(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        return [self._group(group) for group in groups]

    def _group(self, group: TrajectoryGroup) -> TrajectoryGroup:
        lengths: dict[str, int] = {}
        for t in group.trajectories:
            lengths[t.episode_id] = lengths.get(t.episode_id, 0) + t.num_trained
        for t in group.trajectories:
            lengths[t.episode_id] = max(lengths[t.episode_id], t.num_sampled)
        return replace(
            group, trajectories=tuple(self._trajectory(t, lengths) for t in group.trajectories)
        )

    def _trajectory(self, trajectory: Trajectory, lengths: Mapping[str, int]) -> Trajectory:
        late = self.overlong(lengths[trajectory.episode_id]) if self.overlong else 0.0
        rewards = trajectory.turn_rewards
        last = max((i for i, r in enumerate(rewards) if r is not None), default=-1)
        due = tuple(
            None if r is None else r + (late if i == last else 0.0) for i, r in enumerate(rewards)
        )
        return replace(
            trajectory,
            reward=self._shape(trajectory.reward + late),
            turn_rewards=self._turn_rewards(replace(trajectory, turn_rewards=due)),
        )

    def _turn_rewards(self, trajectory: Trajectory) -> tuple[float | None, ...]:
        """The rewards of turns whose returns are the shaped returns of the given ones."""
        rewards = trajectory.turn_rewards
        if not self.bias and self.clip is None:  # the sum of scaled rewards is the scaled sum
            return tuple(None if r is None else self._shape(r) for r in rewards)
        if not any(r is not None for r in rewards):
            return rewards
        alternatives = trajectory.turn_alternatives
        shaped: list[float | None] = [None] * len(rewards)
        earned: list[frozenset[int]] = [frozenset()] * len(rewards)
        for turn, value in reversed(list(enumerate(turn_returns(trajectory)))):
            if value is None or (rewards[turn] is None and not alternatives):
                continue  # its return is that of the next rewarded turn
            others = alternatives[turn] if alternatives else ()
            later = [i for i in range(turn + 1, len(rewards)) if i not in others]
            if alternatives:
                earned[turn] = frozenset(i for i in (turn, *later) if rewards[i] is not None)
            if rewards[turn] is None and any(earned[i] == earned[turn] for i in later):
                continue  # its return is that of a later turn; where answers fork, that of none
            shaped[turn] = self._shape(value) - sum(shaped[i] or 0.0 for i in later)
        return tuple(shaped)

    def _shape(self, reward: float) -> float:
        shaped = (reward + self.bias) * self.scale
        return shaped if self.clip is None else min(max(shaped, -self.clip), self.clip)
