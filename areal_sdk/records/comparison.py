"""A comparison of runs: the settings that differ, and the results side by side."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from areal_sdk.config.keys import leaves
from areal_sdk.config.tables import written_key
from areal_sdk.records.overview import held_out
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.run_dir import BEST, read_measured

NAMES = ("run.name", "run.dir")
"""Settings that differ between any two runs."""
NUM_STEPS = 5
"""Number of steps at either end of a run whose mean reward is shown."""

Number = float | int | None


def differing_settings(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The settings that differ, by the key that `--set` takes, with the value in each run; None if it is not set."""
    flat = [{written_key(parts): value for parts, value in leaves(config)} for config in configs]
    keys = sorted({key for settings in flat for key in settings if key not in NAMES})
    values = {key: [settings.get(key) for settings in flat] for key in keys}
    return {
        key: of_runs for key, of_runs in values.items() if any(v != of_runs[0] for v in of_runs)
    }


def figures_of(run_dir: RunDir) -> dict[str, Number]:
    """The figures of a run by name; None for a figure that the run does not have."""
    steps, measured = run_dir.read_steps(), held_out(run_dir.read_history())
    best, ledger = read_measured(run_dir.checkpoints / BEST), run_dir.read_ledger() or {}
    last = steps[-1] if steps else {}
    return {
        "steps": len(steps),
        "minutes of training": _scaled(last.get("train_seconds"), 1 / 60),
        "held-out before": measured.before if measured else None,
        "held-out after": measured.after if measured else None,
        "best success": best["success"] if best else None,
        "best step": best["step"] if best else None,
        f"reward, first {NUM_STEPS} steps": _mean(steps[:NUM_STEPS], "batch/reward"),
        f"reward, last {NUM_STEPS} steps": _mean(steps[-NUM_STEPS:], "batch/reward"),
        "episodes trained": ledger.get("trained"),
        "episodes dropped": sum(ledger["dropped"].values()) if "dropped" in ledger else None,
        "seconds a step (median)": _seconds_a_step(steps),
        "tokens sampled a second": _mean(steps, "sampled_per_s"),
        "staleness (mean)": _mean(steps, "batch/staleness"),
        "entropy, last": last.get("train/entropy"),
    }


def _values(steps: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [step[name] for step in steps if step.get(name) is not None]


def _mean(steps: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = _values(steps, name)
    return fmean(values) if values else None


def _seconds_a_step(steps: Sequence[Mapping[str, Any]]) -> float | None:
    """The median time from the end of one step to the end of the next, the wait for episodes included."""
    begins_whole = bool(steps) and steps[0]["step"] == 1
    ends = [0.0] * begins_whole + _values(steps, "train_seconds")
    seconds = [end - begin for begin, end in pairwise(ends)]
    return median(seconds) if seconds else None


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor
