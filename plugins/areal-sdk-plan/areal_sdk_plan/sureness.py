"""The possible error of a prediction, and its causes: an estimate with its parts, not a guarantee."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from areal_sdk_plan.calibration.speeds_of_runs import Calibration
from areal_sdk_plan.simulation.run import simulate
from areal_sdk_plan.splits import Split

TABLE_FACTOR = 2.35
"""Factor within which 95 % of the published figures are if their source was left out of the fit of
the table, where sources count alike (docs/scaling.md)."""
MEASURED_FACTOR = 1.6
"""The same, once a measured step of the same model calibrates the plan."""
MODEL_ERROR = 0.06
"""Relative error of a calibrated plan that extrapolates nothing: the root mean square of what
benchmarks/plan.py measured."""
PER_DOUBLING = 0.06
"""Relative error for each doubling beyond the size of the recorded run. This is a judgement: one
machine cannot measure it."""
SEEDS = (1, 2)


@dataclass(frozen=True, slots=True)
class Doubt:
    """One reason why a prediction may be off."""

    reason: str
    error: float
    """Relative."""


@dataclass(frozen=True, slots=True)
class Sureness:
    doubts: tuple[Doubt, ...]

    @property
    def error(self) -> float:
        """All doubts together, as if they were independent.

        >>> Sureness((Doubt("a", 0.3), Doubt("b", 0.4))).error
        0.5
        """
        return math.hypot(*(doubt.error for doubt in self.doubts))

    @property
    def word(self) -> str:
        if self.error <= 0.15:
            return "sure"
        return "fairly sure" if self.error <= 0.3 else "a rough guess"

    @property
    def main_doubts(self) -> Sequence[Doubt]:
        """The doubts that matter, the largest first."""
        ordered = sorted(self.doubts, key=lambda doubt: -doubt.error)
        return [doubt for doubt in ordered if doubt.error >= 0.3 * self.error and doubt.error > 0]


def sureness_of(
    split: Split, calibration: Calibration | None, *, is_measured: bool = False
) -> Sureness:
    """The possible errors of the prediction for a split."""
    doubts = [Doubt("the seed of the simulation", _seed_error(split))]
    if is_measured:
        doubts.append(Doubt("calibrated by one measured figure", MEASURED_FACTOR - 1.0))
        return Sureness(tuple(doubts))
    if calibration is None:
        doubts.append(Doubt("speeds from a table of hardware, not from a run", TABLE_FACTOR - 1.0))
        return Sureness(tuple(doubts))
    run = calibration.runs[0]
    before = calibration.setup
    together = split.forecast.requests_per_engine / calibration.most_together
    doubts += [
        Doubt("the simulation itself", MODEL_ERROR),
        Doubt("the simulation of the recorded run is off", calibration.own_error),
        Doubt("steps of the recorded run scatter", run.step_noise()),
        _beyond("engines", split.engines / before.num_engines),
        _beyond("trainer ranks", split.ranks / calibration.most_ranks),
        _beyond("requests on one server", together),
        _beyond("episodes in a batch", split.setup.rules.gate.batch / before.rules.gate.batch),
    ]
    return Sureness(tuple(doubts))


def _beyond(what: str, factor: float) -> Doubt:
    doublings = math.log2(max(1.0, factor))
    return Doubt(f"{factor:.3g} times the {what} of the recorded run", PER_DOUBLING * doublings)


def _seed_error(split: Split) -> float:
    """Relative spread of the prediction over seeds of a shorter simulation."""
    steps = max(8, split.forecast.steps // 3)
    found = [simulate(split.setup, steps=steps, warm=3, seed=s).tokens_per_s for s in SEEDS]
    found.append(split.forecast.tokens_per_s)
    mean = sum(found) / len(found)
    return math.sqrt(sum((value / mean - 1.0) ** 2 for value in found) / len(found))
