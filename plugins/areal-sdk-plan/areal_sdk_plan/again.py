"""A recorded run simulated at its own speeds, step by step, to be shown beside what was measured."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from areal_sdk_plan.calibration.speeds_of_runs import MOST_STEPS, calibrate
from areal_sdk_plan.simulation.run import simulated_steps


@dataclass(frozen=True, slots=True)
class RunAgain:
    """A run as the rules of the loop and the run's own lengths and speeds predict it."""

    measured_s: float
    """Mean seconds of a step of the run."""
    predicted_s: float
    """Mean seconds of a step in the simulation: far from `measured_s` where the speeds could not be told."""
    steps: Sequence[Mapping[str, float]]
    """The seconds of each step that are `wait`, `step` and `publish`, in this order. Later steps are like the last."""


def play_again(run: Path) -> RunAgain:
    """Simulate the recorded run in `run`. ConfigError if it is too short, or has no times."""
    calibration = calibrate([run])
    steps, ended_at = [], 0.0
    for one in simulated_steps(calibration.setup, steps=MOST_STEPS):
        publish_s = max(0.0, one.ended_at - ended_at - one.waited_s - one.step_s)
        steps.append({"wait": one.waited_s, "step": one.step_s, "publish": publish_s})
        ended_at = one.ended_at
    return RunAgain(calibration.measured_step_s, calibration.predicted_step_s, steps)
