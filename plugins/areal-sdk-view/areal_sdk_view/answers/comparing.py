"""Runs side by side: the settings that differ, the figures, and held-out tasks with intervals."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from areal_sdk.records import FollowedRun, differing_settings, figures_of

MAX_RUNS, MAX_SIDES = 100, 12
"""Maximum number of runs whose curves, and of runs whose evaluations, are compared."""


def compare(paths: Mapping[str, Path]) -> dict[str, Any]:
    """The figures and differing settings of several runs. Their curves are in each run's own `events`."""
    if len(paths) > MAX_RUNS:
        raise ValueError(f"{len(paths)} runs: compare at most {MAX_RUNS}")
    runs = {name: FollowedRun(path).run_dir for name, path in paths.items()}
    return {
        "runs": list(runs),
        "max_sides": MAX_SIDES,
        "figures": {name: figures_of(run) for name, run in runs.items()},
        "settings": differing_settings([run.read_config() for run in runs.values()]),
    }
