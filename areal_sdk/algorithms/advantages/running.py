"""The baseline of a source: its usual returns, for episodes without siblings.

For each source, the returns of its latest episodes are kept. They give the usual return of a turn and
its spread. A return far from the others counts only up to a bound. So a wrong reward moves the baseline
of its own source a little and for a while, and no other baseline.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from areal_sdk.algorithms.advantages.estimator import MIN_STD, Baselines, Estimate, Evidence
from areal_sdk.algorithms.advantages.returns import (
    Floats,
    bounded,
    episodes_of,
    return_at,
    returns_of,
    spread,
    spread_turns,
)
from areal_sdk.trajectory import Trajectory, TrajectoryGroup

TURNS = 32
"""Number of turns of an episode whose returns are remembered by turn. Later turns are compared with the last remembered turn."""
NAMES_FROM = 16
"""Number of returns of a source from which on an outlying return is reported by name. The spread of fewer returns says
little: of normally distributed returns, 28 % lie beyond 5 spreads of the previous 4 returns, 4 % beyond those of the
previous 8, and 0.6 % beyond those of the previous 16. The effect of every return is bounded, also that of the first."""
NORMAL = 1.4826
"""The standard deviation of normally distributed values, in units of their median deviation."""

Remembered = list[list[float | None]]
"""Returns of one source's latest episodes, turn by turn, oldest first."""


@dataclass(frozen=True, slots=True)
class Usual:
    """The usual return of a turn: mean and spread of the remembered returns, after outlying returns were bounded."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """The sum of squared deviations from the mean."""
    median: float = 0.0
    typical: float = 0.0
    """A robust spread: `NORMAL` times the median deviation of those returns that differ from the median."""

    @classmethod
    def of(cls, returns: Sequence[float], *, bound: float) -> "Usual":
        """The statistics of `returns`, each taken at most `bound` typical deviations from the median.

        >>> Usual.of([0.0, 1.0, 1.0, 0.0], bound=5.0)
        Usual(count=4, mean=0.5, squares=1.0, median=0.5, typical=0.7413)

        1,000,000 counts as 5 typical deviations above the median, 7.413:

        >>> Usual.of([0.0, 1.0, 0.0, 1e6, 0.0], bound=5.0).mean == (1 + 5 * 1.4826) / 5
        True
        """
        if not returns:
            return cls()
        values = np.array(returns, dtype=np.float64)
        middle = float(np.median(values))
        deviations = np.abs(values - middle)
        others = np.sort(deviations[deviations > MIN_STD])
        typical = NORMAL * float(others[(len(others) - 1) // 2]) if len(others) else 0.0
        values = values.clip(middle - bound * typical, middle + bound * typical)
        mean = float(values.mean())
        return cls(len(values), mean, float(np.square(values - mean).sum()), middle, typical)

    def surprise(self, value: float, *, bound: float) -> float:
        """The number of spreads by which `value` lies above the mean; 0 with nothing to compare
        with.

        The spread counts `value` too: among a few values none stands out by much.

        >>> round(Usual.of([0.0], bound=5.0).surprise(1.0, bound=5.0), 4)  # the root of 2
        1.4142
        >>> Usual.of([1.0] * 32, bound=5.0).surprise(-1e6, bound=5.0)
        -5.0
        """
        if not self.count:
            return 0.0
        distance = value - self.mean
        scale = float(np.sqrt((self.squares + distance**2) / (self.count + 1)))
        return min(max(distance / scale, -bound), bound) if scale >= MIN_STD else 0.0


@dataclass(frozen=True, slots=True)
class RunningBaseline:
    """The baseline of episodes without siblings: compares a return with the usual returns of its source.

    The source is `TrajectoryGroup.source`: the name of a caller, or the origin of played tasks, since a generator never
    repeats a task. An episode is compared with the latest episodes of its source. A rewarded turn is compared with the
    returns of these episodes from the same turn on. An episode that ended earlier counts with the return of its last
    turn, as in `GroupRelative`. The first reward of a source has nothing to be compared with, so it teaches nothing.

    The unit of an advantage is the spread of its source. Advantages are never centred over the batch: a batch of
    successes keeps positive advantages, and the rewards of one source do not change those of another.

    Earlier episodes do not depend on the tokens sampled now, so the comparison does not change the expected gradient.
    The spread and the bound do change it: they give sources and surprises different weights, but never change a sign.
    """

    discount: float
    """Discount a turn: a reward that comes n turns later counts `discount`^n."""
    max_surprise: float
    """Maximum distance at which a return counts, in spreads of its source, in advantages and in baselines."""
    memory: int = 32
    """Episodes of a source that are remembered. With 32, chance in their mean adds 3 % to the
    variance of an advantage, and a wrong reward is forgotten after 32 episodes of its source."""

    def __call__(self, groups: Sequence[TrajectoryGroup], evidence: Evidence) -> Estimate:
        known = dict(evidence.baselines)
        return Estimate([self._judge(group, known) for group in groups], known)

    def outliers(
        self, groups: Sequence[TrajectoryGroup], baselines: Baselines
    ) -> Mapping[str, str]:
        """A line about each source with a return too far from its usual returns. The line describes the first such return."""
        known, found = dict(baselines), dict[str, str]()
        for group in groups:
            usual = self._usual(known, group.source)
            for values in self._returns(group).values():
                for value, compared in zip(values, usual, strict=False):
                    if value is not None and self._is_far(value, compared, known, groups):
                        found.setdefault(group.source, self._describe(value, compared))
            self._judge(group, known)
        return found

    def _judge(self, group: TrajectoryGroup, known: dict[str, Any]) -> list[Floats]:
        """The advantages of a group, whose returns are remembered in `known` from then on."""
        usual, returns = self._usual(known, group.source), self._returns(group)
        # Every episode of the group is judged before any of them moves the baseline.
        scores = {
            key: [
                0.0
                if value is None
                else usual[min(turn, len(usual) - 1)].surprise(value, bound=self.max_surprise)
                for turn, value in enumerate(values)
            ]
            for key, values in returns.items()
        }
        episodes = [*remembered(known, group.source), *(v[:TURNS] for v in returns.values())]
        known[group.source] = episodes[-self.memory :]
        return [
            spread_turns(t, scores[t.episode_id])
            if self._is_by_turn(t)
            else spread(t, scores[t.episode_id][0])
            for t in group.trajectories
        ]

    def _is_by_turn(self, trajectory: Trajectory) -> bool:
        return bool(trajectory.turn_rewards) or self.discount < 1.0

    def _returns(self, group: TrajectoryGroup) -> dict[str, list[float | None]]:
        """Returns by turn if turns were rewarded; else one for the whole episode."""
        by_turn = returns_of(group, discount=self.discount)
        return {
            key: by_turn[key] if self._is_by_turn(episode) else [bounded(episode.reward)]
            for key, episode in episodes_of(group).items()
        }

    def _usual(self, known: Baselines, source: str) -> list[Usual]:
        """The usual return of each remembered turn; at least one."""
        episodes = remembered(known, source)
        by_turn = (
            [value for e in episodes if (value := return_at(e, turn)) is not None]
            for turn in range(max([1, *map(len, episodes)]))
        )
        return [Usual.of(returns, bound=self.max_surprise) for returns in by_turn]

    def _is_far(
        self, value: float, usual: Usual, known: Baselines, groups: Sequence[TrajectoryGroup]
    ) -> bool:
        """Whether a return is beyond the bound of its source. If all earlier returns of the source were equal, the spread
        of the other sources in `groups` gives the bound."""
        distance = abs(value - usual.median)
        if usual.count < NAMES_FROM or distance <= MIN_STD:
            return False
        typical = usual.typical
        if not typical:
            others = (self._usual(known, source)[0] for source in {g.source for g in groups})
            spreads = [other.typical for other in others if other.typical]
            typical = median(spreads) if spreads else distance
        return distance > self.max_surprise * typical

    def _describe(self, value: float, usual: Usual) -> str:
        return (
            f"a reward of {value:g} is far from the {usual.median:g} of the {usual.count} before it, right or wrong: "
            f"it counts as {self.max_surprise:g} spreads at most (algorithm.running_baseline.max_surprise)"
        )


def remembered(baselines: Baselines, source: str) -> Remembered:
    """The returns of a source in `baselines`. An old (mean, weight) pair counts as one episode.

    >>> remembered({"a": [[0.0], [0.5, 1.0]]}, "a"), remembered({"a": [0.25, 10.0]}, "a")
    ([[0.0], [0.5, 1.0]], [[0.25]])
    """
    held = baselines.get(source, ())
    if held and not isinstance(held[0], Sequence):
        mean, _ = held
        return [[mean]]
    return [list(episode) for episode in held]
