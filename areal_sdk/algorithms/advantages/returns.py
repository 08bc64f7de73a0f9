"""The returns of turns, and the trajectories of a group sorted by episode."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from areal_sdk.trajectory import Trajectory, TrajectoryGroup

Floats = NDArray[np.float32]

HUGE = 1e100
"""Bound of a reward, so that no sum or square of rewards overflows."""
FAR = 1e30
"""Bound of an advantage: advantages are float32."""


def turn_returns(
    trajectory: Trajectory, num_turns: int = 1, *, discount: float = 1.0
) -> list[float | None]:
    """The return of each turn: its reward plus the rewards of its consequences. None without any reward.

    The consequences of a turn are all later turns, except other answers to the same prompt and the
    turns that follow these answers.

    >>> from areal_sdk.trajectory import Trajectory
    >>> def rewarded(*turn_rewards):
    ...     return Trajectory("e", "t", (), (), (), (), (), (), 2.0, turn_rewards)
    >>> turn_returns(rewarded(0.5, None, 1.0, None))
    [1.5, 1.0, 1.0, None]

    With a discount d, a reward counts d-fold for the turn before, and d * d-fold for the turn before that.

    >>> turn_returns(rewarded(0.5, None, 1.0, None), discount=0.5)
    [0.75, 0.5, 1.0, None]

    If the whole episode has one reward, the end of the episode earns it, and every turn returns it.

    >>> turn_returns(rewarded(), num_turns=3)
    [2.0, 2.0, 2.0]
    >>> turn_returns(rewarded(), num_turns=3, discount=0.5)
    [0.5, 1.0, 2.0]
    """
    if not trajectory.turn_rewards:
        last = bounded(trajectory.reward)
        return [last * discount**later for later in reversed(range(num_turns))]
    if trajectory.turn_alternatives:
        return _branching_returns(trajectory, discount)
    returns: list[float | None] = []
    following: float | None = None
    for reward in reversed(trajectory.turn_rewards):
        if following is not None:
            following *= discount
        if reward is not None:
            following = bounded(reward) + (following or 0.0)
        returns.append(following)
    return returns[::-1]


def _branching_returns(trajectory: Trajectory, discount: float) -> list[float | None]:
    """Returns of turns if some of them answer the same prompt. The distance of two turns is counted along the turns
    that led from one to the other."""
    apart = distances(trajectory)
    weights = np.where(np.isfinite(apart), discount**apart, 0.0)
    is_scored = np.array([reward is not None for reward in trajectory.turn_rewards])
    rewards = np.array([bounded(reward or 0.0) for reward in trajectory.turn_rewards])
    has_return = np.isfinite(apart) @ is_scored
    return [
        float(value) if known else None
        for value, known in zip(weights @ rewards, has_return, strict=True)
    ]


def distances(trajectory: Trajectory) -> NDArray[np.float64]:
    """The number of turns that lead from each turn to each of its consequences; infinite to all other turns.

    It is needed only if some turns are alternatives. Otherwise turns are as far apart as their numbers.
    """
    count = len(trajectory.turn_alternatives)
    leads_to = np.array(
        [
            [later > turn and later not in others for later in range(count)]
            for turn, others in enumerate(trajectory.turn_alternatives)
        ]
    )
    between = leads_to.astype(np.float64) @ leads_to
    found = np.where(leads_to, 1.0 + between, np.inf)
    np.fill_diagonal(found, 0.0)
    return found


def return_at(returns: Sequence[float | None], turn: int) -> float | None:
    """The return of an episode at `turn`. If that turn has none, or the episode ended before it, the latest return before.

    >>> return_at([0.5, 1.0], 0), return_at([0.5, 1.0], 7), return_at([0.5, None], 1)
    (0.5, 1.0, 0.5)
    """
    return next((value for value in reversed(returns[: turn + 1]) if value is not None), None)


def bounded(reward: float) -> float:
    return min(max(reward, -HUGE), HUGE)


def near(advantage: float) -> float:
    return min(max(advantage, -FAR), FAR)


def episodes_of(group: TrajectoryGroup) -> dict[str, Trajectory]:
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


def returns_of(group: TrajectoryGroup, *, discount: float) -> dict[str, list[float | None]]:
    """The returns of each episode's turns."""
    num_turns: dict[str, int] = {}
    for trajectory in group.trajectories:
        last = trajectory.turn_of_token.max(initial=0)
        key = trajectory.episode_id
        num_turns[key] = max(num_turns.get(key, 1), trajectory.num_turns, int(last) + 1)
    return {
        key: turn_returns(episode, num_turns[key], discount=discount)
        for key, episode in episodes_of(group).items()
    }


def scored_tokens(group: TrajectoryGroup) -> list[NDArray[np.bool_]]:
    """The trained tokens of each trajectory, without the tokens of turns that have no return."""
    returns = returns_of(group, discount=1.0)
    return [
        spread_turns(t, [float(value is not None) for value in returns[t.episode_id]]) > 0.0
        for t in group.trajectories
    ]


def spread(trajectory: Trajectory, advantage: float) -> Floats:
    """An array with `advantage` for each trained token, and 0 for the others."""
    return np.where(trajectory.loss_mask, np.float32(near(advantage)), np.float32(0.0))


def spread_turns(trajectory: Trajectory, by_turn: Sequence[float]) -> Floats:
    """An array with the advantage of its turn for each trained token, and 0 for the others."""
    values = np.array([*map(near, by_turn), 0.0], dtype=np.float32)
    known = trajectory.loss_mask & (trajectory.turn_of_token < len(by_turn))
    return values[np.where(known, trajectory.turn_of_token, len(by_turn))]
