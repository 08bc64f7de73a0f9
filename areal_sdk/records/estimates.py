"""Rates and means over tasks with confidence intervals: pure functions of numbers."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

CONFIDENCE_Z = 1.959963984540054
"""Number of standard errors of a two-sided 95 % interval."""
NUM_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Interval:
    """A rate or a mean with its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if not self.has_interval:
            return f"{self.value:.3f} [?, ?]"
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    @property
    def has_interval(self) -> bool:
        """Whether the data give an interval; else `low` and `high` are infinite."""
        return math.isfinite(self.low) and math.isfinite(self.high)


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """The chance that k of the samples, drawn without replacement, hold a correct one.

    >>> pass_at_k(4, 1, 1), pass_at_k(4, 1, 2), pass_at_k(4, 3, 2)
    (0.25, 0.5, 1.0)
    """
    if num_samples - num_correct < k:
        return 1.0
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def wilson(num_successes: int, num_trials: int) -> Interval:
    """A proportion with its Wilson interval, which is valid at 0 and at 1 too.

    >>> str(wilson(9, 10)), str(wilson(0, 20))
    ('0.900 [0.596, 0.982]', '0.000 [0.000, 0.161]')
    """
    return _wilson(num_successes / num_trials, num_trials)


def _wilson(rate: float, num_trials: float) -> Interval:
    z2 = CONFIDENCE_Z**2
    centre = (rate + z2 / (2 * num_trials)) / (1 + z2 / num_trials)
    spread = math.sqrt(rate * (1 - rate) / num_trials + z2 / (4 * num_trials**2))
    half = CONFIDENCE_Z * spread / (1 + z2 / num_trials)
    low, high = max(0.0, centre - half), min(1.0, centre + half)
    return Interval(rate, min(low, rate), max(high, rate))  # rounding must not exclude the rate


def bootstrap(values: Sequence[float]) -> Interval:
    """The mean of independent values, one per task, with its percentile-bootstrap interval."""
    generator = random.Random(0)  # the same data give the same interval
    means = sorted(fmean(generator.choices(values, k=len(values))) for _ in range(NUM_RESAMPLES))
    low, high = means[round(0.025 * NUM_RESAMPLES)], means[round(0.975 * NUM_RESAMPLES) - 1]
    return Interval(fmean(values), low, high)


def share_of_tasks(values: Sequence[float], *, num_attempts: int) -> Interval:
    """The mean of values between 0 and 1, one per task, with its confidence interval.

    Attempts at one task resemble each other, so they count as fewer independent attempts. The number
    of independent attempts is estimated from the variance between tasks. It lies between the number
    of tasks and the number of attempts. If all values are 0, or all are 1, it is the number of tasks.

    >>> str(share_of_tasks([0.0, 0.0], num_attempts=8))
    '0.000 [0.000, 0.658]'
    >>> str(share_of_tasks([0.5, 0.5], num_attempts=8)) == str(wilson(4, 8))
    True
    """
    num_tasks, rate = len(values), fmean(values)
    worth = float(num_tasks)
    if num_tasks > 1 and 0.0 < rate < 1.0:
        squared_error = variance(values) / num_tasks
        worth = rate * (1.0 - rate) / squared_error if squared_error else math.inf
        worth = min(max(worth, float(num_tasks)), float(max(num_attempts, num_tasks)))
    return _wilson(rate, worth)


def mean_of_tasks(values: Sequence[float]) -> Interval:
    """The mean of independent values, one per task, with its interval.

    If all values are equal, their variance gives no interval. Values between 0 and 1 have a bounded
    variance, so there is an interval; for other values there is none.

    >>> str(mean_of_tasks([1.0, 1.0])), str(mean_of_tasks([8.0, 8.0]))
    ('1.000 [0.342, 1.000]', '8.000 [?, ?]')
    """
    if len(set(values)) > 1:
        return bootstrap(values)
    if 0.0 <= values[0] <= 1.0:
        return share_of_tasks(values, num_attempts=len(values))
    return Interval(values[0], -math.inf, math.inf)
