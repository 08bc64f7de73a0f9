"""The class of a run, by rules that were written before any run: see benchmarks/gauntlet.py."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import mean

WINDOW = 3
"""Neighbouring evaluations whose mean counts as one success."""
LEAST_GAIN = 0.1
SURE = 3.0
"""Standard errors of a difference."""
LEAST_KEPT = 0.8
LEAST_LEFT = 0.25
LEAST_SIGNAL = 0.05
SOLVED = 0.95


class Verdict(StrEnum):
    """The class of a run."""

    STAYED = "learnt and stayed"
    FELL = "learnt then fell"
    STALLED = "stalled"
    COLLAPSED = "collapsed"
    NO_SIGNAL = "no signal"


@dataclass(frozen=True)
class Judged:
    """A run's successes and its class."""

    start: float
    best: float
    final: float
    verdict: Verdict

    @property
    def kept(self) -> str:
        """The share of the gain that is left at the end, where there was one."""
        gain = self.best - self.start
        return f"{(self.final - self.start) / gain:.2f}" if gain > LEAST_GAIN else "-"


def judge(scores: Sequence[float], *, num_games: int, num_first: int, signal: float) -> Judged:
    """The class of a run from its evaluations.

    The first evaluation comes before any training and has `num_first` games, the others have
    `num_games`. `signal` is the share of groups whose rewards differed, in the first quarter of the steps.
    """
    start, *later = scores
    later = later or [start]
    windows = [mean(later[i : i + WINDOW]) for i in range(max(1, len(later) - WINDOW + 1))]
    best, final = max(start, *windows), windows[-1]
    num_window = min(WINDOW, len(later)) * num_games
    of_best = num_window if best > start else num_first

    def is_more(gain: float, least: float, error: float) -> bool:
        return gain > max(least, SURE * error)

    has_learnt = start >= SOLVED or is_more(
        best - start, LEAST_GAIN, error_of_difference((best, of_best), (start, num_first))
    )
    ends_below = is_more(
        start - final, LEAST_GAIN, error_of_difference((start, num_first), (final, num_window))
    )
    if ends_below or (has_learnt and final < LEAST_LEFT * best):
        verdict = Verdict.COLLAPSED
    elif has_learnt:
        error = error_of_difference((best, of_best), (final, num_window))
        has_fallen = is_more(best - final, (1.0 - LEAST_KEPT) * (best - start), error)
        verdict = Verdict.FELL if has_fallen else Verdict.STAYED
    else:
        verdict = Verdict.NO_SIGNAL if signal < LEAST_SIGNAL else Verdict.STALLED
    return Judged(start, best, final, verdict)


def error_of_difference(*rates: tuple[float, int]) -> float:
    """The standard error of the difference of two success rates, each with its number of games.

    A rate of 0 or 1 has no spread of its own, so one game more of either kind is assumed.

    >>> round(error_of_difference((0.5, 600), (0.5, 600)), 3)
    0.029
    """

    def variance(rate: float, num_games: int) -> float:
        smooth = (rate * num_games + 1.0) / (num_games + 2.0)
        return smooth * (1.0 - smooth) / num_games

    return math.sqrt(sum(variance(rate, num_games) for rate, num_games in rates))
