"""Rewards on their way to an estimator: bias, scale, bounds, and a penalty for long answers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose

import numpy as np

from areal_sdk.algorithms.advantages.returns import turn_returns
from areal_sdk.errors import ConfigError
from areal_sdk.trajectory import Trajectory, TrajectoryGroup

NEAR = 1e-9
"""Relative distance below which two returns count as equal, so that shaping gives no reward to a turn without one."""


@dataclass(frozen=True, slots=True)
class Overlong:
    """A soft limit: the penalty grows over the last `margin` tokens before `limit`. DAPO's overlong shaping, Yu et al. 2025,
    arXiv 2503.14476.

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
        """The number to add to the reward of an episode of `num_tokens` sampled tokens: 0 or negative."""
        excess = num_tokens - (self.limit - self.margin)
        return self.penalty * max(min(-excess / self.margin, 0.0), -1.0)


@dataclass(frozen=True, slots=True)
class RewardShaping:
    """(reward + overlong + bias) * scale, bounded by `clip`.

    With rewards of turns, the return of a turn is shaped: the sum of its reward and of the rewards of its
    consequences. So an episode of many rewarded turns has no more of the bias than one of a single reward. The
    overlong penalty is due with the last rewarded turn. If answers fork, the length of an answer is its own and that
    of the turns that led to it. Estimators and their baselines see shaped rewards; metrics, ledger and dynamic
    sampling see the rewards as they were given.
    """

    scale: float = 1.0
    bias: float = 0.0
    clip: float | None = None
    """Bound of shaped rewards, in both directions."""
    overlong: Overlong | None = None

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ConfigError(f"reward scale = {self.scale}: give a positive number")
        if self.clip is not None and self.clip <= 0:
            raise ConfigError(f"reward clip = {self.clip}: give a positive number")

    def __call__(self, groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
        return [self._group(group) for group in groups]

    def _group(self, group: TrajectoryGroup) -> TrajectoryGroup:
        rows: dict[str, list[Trajectory]] = {}
        for t in group.trajectories:
            rows.setdefault(t.episode_id, []).append(t)
        late = {key: self._late(of_episode) for key, of_episode in rows.items()}
        shaped = tuple(self._trajectory(t, late[t.episode_id]) for t in group.trajectories)
        return replace(group, trajectories=shaped)

    def _late(self, rows: Sequence[Trajectory]) -> Mapping[int | None, float]:
        """The overlong penalties of an episode, by the turn whose reward each lowers; None: the reward of the episode."""
        if self.overlong is None:
            return {}
        return {turn: self.overlong(length) for turn, length in _due_lengths(rows).items()}

    def _trajectory(self, trajectory: Trajectory, late: Mapping[int | None, float]) -> Trajectory:
        rewards = trajectory.turn_rewards
        due = tuple(None if r is None else r + late.get(i, 0.0) for i, r in enumerate(rewards))
        return replace(
            self._with_turn_rewards(replace(trajectory, turn_rewards=due)),
            reward=self._shape(trajectory.reward + sum(late.values())),
        )

    def _with_turn_rewards(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with new rewards of its turns, so that the return of each turn is its given return, shaped."""
        rewards, alternatives = trajectory.turn_rewards, trajectory.turn_alternatives
        if not any(reward is not None for reward in rewards):
            return trajectory
        if not self.bias and self.clip is None:  # the sum of scaled rewards is the scaled sum
            scaled = tuple(None if r is None else self._shape(r) for r in rewards)
            return replace(trajectory, turn_rewards=scaled)
        others = [frozenset(turns) for turns in alternatives or ((),) * len(rewards)]
        shaped: list[float | None] = [None] * len(rewards)
        for turn, value in reversed(list(enumerate(turn_returns(trajectory)))):
            later = [i for i in range(turn + 1, len(rewards)) if i not in others[turn]]
            if value is None:
                # Nothing scored came of it, so no correction of a turn between may come of it either.
                others[turn] |= {i for i in later if shaped[i] is not None}
                continue
            due, come = self._shape(value), sum(shaped[i] or 0.0 for i in later)
            if rewards[turn] is not None or not isclose(due, come, rel_tol=NEAR, abs_tol=NEAR):
                shaped[turn] = due - come
        return replace(
            trajectory,
            turn_rewards=tuple(shaped),
            turn_alternatives=tuple(tuple(sorted(turns)) for turns in others)
            if alternatives
            else (),
        )

    def _shape(self, reward: float) -> float:
        shaped = (reward + self.bias) * self.scale
        return shaped if self.clip is None else min(max(shaped, -self.clip), self.clip)


def _due_lengths(rows: Sequence[Trajectory]) -> dict[int | None, int]:
    """The number of tokens sampled along each path of an episode, by the last turn with a reward on it.

    If answers fork, there are several paths. Among paths with the same last reward, the longest counts. None stands
    for the whole episode, if no turn has a reward.
    """
    first = rows[0]
    whole = max(first.num_sampled, sum(t.num_trained for t in rows))
    scored = [turn for turn, reward in enumerate(first.turn_rewards) if reward is not None]
    if not scored:
        return {None: whole}
    if not first.turn_alternatives:
        return {scored[-1]: whole}
    lengths = first.turn_lengths or _trained_by_turn(rows)
    found: dict[int | None, int] = {}
    for path in _paths(first.turn_alternatives):
        last = max((turn for turn in scored if turn in path), default=None)
        if last is not None:
            found[last] = max(found.get(last, 0), sum(lengths[turn] for turn in path))
    return found


def _trained_by_turn(rows: Sequence[Trajectory]) -> list[int]:
    count = len(rows[0].turn_alternatives)
    turns = [int(turn) for t in rows for turn in t.turn_of_token[t.loss_mask]]
    return [int(length) for length in np.bincount(turns, minlength=count)]


def _paths(turn_alternatives: Sequence[Sequence[int]]) -> Iterator[set[int]]:
    """Yield paths, which are turns that led to one another, until each turn is on a path.

    >>> [sorted(path) for path in _paths([(), (2,), (), ()])]  # 1 and 2 answer the same prompt
    [[0, 2, 3], [0, 1, 3]]
    """
    count = len(turn_alternatives)
    apart: list[set[int]] = [set(later) for later in turn_alternatives]
    for turn, later in enumerate(turn_alternatives):
        for other in later:
            apart[other].add(turn)
    left = set(range(count))
    while left:
        start = max(left)
        path, barred = {start}, set(apart[start])
        for turn in (*range(start + 1, count), *reversed(range(start))):
            if turn not in barred:
                path.add(turn)
                barred |= apart[turn]
        left -= path
        yield path
