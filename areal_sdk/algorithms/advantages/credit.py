"""Credit along the tokens of an episode: Monte Carlo returns, and GAE with a critic.

The trained tokens of an episode are one chain, turn after turn and over its branches; the text of tools and users
lies between two links and takes no time. If turns are alternatives of one another (rewards by turn, several answers
to one prompt), each trajectory is a chain of its own.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from areal_sdk.algorithms.advantages.estimator import Estimate, Evidence, PerToken
from areal_sdk.algorithms.advantages.returns import distances, near, turn_returns
from areal_sdk.algorithms.needs import Coverage, Needs
from areal_sdk.errors import ConfigError
from areal_sdk.trajectory import Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Link:
    """A trained token, as one link in the chain of an episode's trained tokens."""

    row: int
    """Index of the trajectory in its group."""
    position: int
    turn: int
    reward: float
    """The reward that this token earned: the return of its turn minus the discounted return of the next link's turn. So the
    last trained token of a turn gets the reward of the turn, and the rewards of the turns after it that have no token
    in this chain."""
    discount: float
    """Factor on the next link's return in the return of this link; 1 within a turn unless tokens are discounted."""


@dataclass(frozen=True, slots=True)
class Returns:
    """Monte Carlo returns: the rewards after a token, compared with nothing. This is REINFORCE without a baseline."""

    discount: float
    """Discount a turn: a reward that comes n turns later counts `discount`^n."""
    token_discount: float = 1.0
    """Discount a token: a reward that comes n tokens later counts `token_discount`^n."""
    kl: float = 0.0
    """Coefficient of the log-ratio to the reference model. The product is taken from the reward of each token."""

    @property
    def needs(self) -> Needs:
        return Needs(reference=self.kl != 0.0)

    def __call__(self, groups: Sequence[TrajectoryGroup], evidence: Evidence) -> Estimate:
        advantages = _like(groups)
        for number, group in enumerate(groups):
            rewards = _kl_rewards(group, number, evidence, self.kl)
            for chain in chains(group, self.discount, self.token_discount):
                following = 0.0
                for link in reversed(chain):
                    reward = link.reward + rewards[link.row][link.position]
                    following = reward + link.discount * following
                    advantages[number][link.row][link.position] = near(following)
        return Estimate(advantages, evidence.baselines)


@dataclass(frozen=True, slots=True)
class GAE:
    """Generalised advantage estimation over trained tokens, with the values of a critic.

    Schulman et al. 2015, arXiv 1506.02438, equation 16. The values are held fixed.

    An episode that ran into a limit ends like any other: nothing is expected after it.
    """

    discount: float
    """Discount a turn: a reward that comes n turns later counts `discount`^n."""
    trace: float
    """Lambda. At 1 advantages are returns minus values; a smaller lambda trusts the critic more."""
    token_discount: float = 1.0
    """Discount a token: a reward that comes n tokens later counts `token_discount`^n."""
    kl: float = 0.0
    """Coefficient of the log-ratio to the reference model. The product is taken from the reward of each token."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.trace <= 1.0:
            raise ConfigError(f"trace = {self.trace}: give a number from 0 to 1")

    @property
    def needs(self) -> Needs:
        return Needs(reference=self.kl != 0.0, values=True, coverage=Coverage.ALL)

    def __call__(self, groups: Sequence[TrajectoryGroup], evidence: Evidence) -> Estimate:
        assert evidence.values is not None, "`needs` asks for values"
        advantages, returns = _like(groups), _like(groups)
        for number, group in enumerate(groups):
            rewards = _kl_rewards(group, number, evidence, self.kl)
            for chain in chains(group, self.discount, self.token_discount):
                next_value = following = 0.0
                for link in reversed(chain):
                    reward = link.reward + rewards[link.row][link.position]
                    value = float(evidence.values[number][link.row][link.position])
                    surprise = reward + link.discount * next_value - value
                    following = surprise + link.discount * self.trace * following
                    next_value = value
                    advantages[number][link.row][link.position] = near(following)
                    returns[number][link.row][link.position] = near(following + value)
        return Estimate(advantages, evidence.baselines, returns)


def chains(group: TrajectoryGroup, discount: float, token_discount: float) -> Iterator[list[Link]]:
    """Chains of trained tokens, in the order of sampling: one an episode, or one a trajectory if turns are alternatives."""
    rows_of: dict[str, list[int]] = {}
    for row, t in enumerate(group.trajectories):
        key = f"{t.episode_id} {row}" if t.turn_alternatives else t.episode_id
        rows_of.setdefault(key, []).append(row)
    for rows in rows_of.values():
        places = sorted(
            (turn, row, position)
            for row in rows
            for position in np.flatnonzero(group.trajectories[row].loss_mask).tolist()
            for turn in [int(group.trajectories[row].turn_of_token[position])]
        )
        if places:
            yield _linked(places, group.trajectories[rows[0]], discount, token_discount)


def _linked(
    places: Sequence[tuple[int, int, int]],
    trajectory: Trajectory,
    discount: float,
    token_discount: float,
) -> list[Link]:
    returns = _returns(trajectory, places[-1][0], discount)
    apart = distances(trajectory) if trajectory.turn_alternatives else None
    links = []
    for index, (turn, row, position) in enumerate(places):
        if index + 1 == len(places):
            links.append(Link(row, position, turn, returns[turn], 1.0))
            continue
        next_turn = places[index + 1][0]
        steps = next_turn - turn if apart is None else float(apart[turn, next_turn])
        worth = discount**steps
        earned = returns[turn] - worth * returns[next_turn]
        links.append(Link(row, position, turn, earned, token_discount * worth))
    return links


def _returns(trajectory: Trajectory, last_turn: int, discount: float) -> list[float]:
    """The return of each turn; 0 where nothing was scored."""
    count = max(trajectory.num_turns, last_turn + 1)
    returns = [value or 0.0 for value in turn_returns(trajectory, count, discount=discount)]
    return returns + [0.0] * (count - len(returns))


def _like(groups: Sequence[TrajectoryGroup]) -> PerToken:
    return [[np.zeros(len(t.tokens), dtype=np.float32) for t in g.trajectories] for g in groups]


def _kl_rewards(
    group: TrajectoryGroup, number: int, evidence: Evidence, coefficient: float
) -> list[np.ndarray]:
    """The penalty of each token for leaving the reference: an estimate from the sampler's logprob."""
    if not coefficient:
        return [np.zeros(len(t.tokens)) for t in group.trajectories]
    assert evidence.reference is not None, "`needs` asks for the reference"
    return [
        -coefficient * (t.logprobs.astype(np.float64) - reference)
        for t, reference in zip(group.trajectories, evidence.reference[number], strict=True)
    ]
