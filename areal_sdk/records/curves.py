"""The curves of a run, as points for reports and plots."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from areal_sdk.telemetry import RunDir

Point = tuple[float, float]
"""(step, value)."""


@dataclass(frozen=True, slots=True)
class Series:
    label: str
    points: tuple[Point, ...]
    band: tuple[tuple[float, float, float], ...] = ()
    """(step, low, high): the 95 % interval of each point that has one."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Series that share an axis."""

    title: str
    series: tuple[Series, ...]
    is_measured: bool = False
    """Whether the series has few points that each matter, such as evaluations, and not one for each step."""


PANELS: Mapping[str, Mapping[str, str]] = {
    "training reward": {"batch/reward": "reward", "batch/success": "success"},
    "staleness, in versions": {"batch/staleness": "mean", "batch/staleness_max": "max"},
    "|\N{GREEK CAPITAL LETTER DELTA} logprob| of engine and trainer": {
        "train/dlogp_lag_0": "same weights",
        "train/dlogp_lag_1": "1 version",
        "train/dlogp_lag_2": "2 versions",
    },
    "entropy": {"train/entropy": "entropy"},
    "loss": {"train/loss": "loss"},
    "accuracy": {"train/accuracy": "accuracy"},
    "gradient norm": {"train/grad_norm": "norm"},
    "KL": {"train/kl_behaviour": "to the sampler", "train/kl_reference": "to the reference"},
    "learning rate": {"train/learning_rate": "rate"},
    "groups that taught nothing": {"train/num_idle_groups": "idle", "batch/groups": "all groups"},
    "turns an episode": {"batch/turns": "turns"},
    "tokens sampled an episode": {"batch/sampled_tokens": "tokens"},
    "episodes that a limit ended": {"batch/truncated": "share"},
    "episodes that called a tool": {"batch/called_tools": "of those that were offered one"},
    "tokens sampled a second": {"sampled_per_s": "tokens"},
    "seconds a step": {"train/step_s": "computed", "batch/waited_s": "waited for episodes"},
}
"""Metrics of each panel of the steps, with their labels."""


SOURCES_IN_PANEL = 4
_OUTCOME = "batch/outcome/"
MAX_OUTCOME_PANELS = 8
"""Largest number of panels for metrics that the outcomes of episodes carry; `inspect --json` has all."""


def panels_of(run_dir: RunDir) -> list[Panel]:
    """The panels that have data, measurements first."""
    events, steps = run_dir.read_history(), run_dir.read_steps()
    evaluations = _latest(event for event in events if event["kind"] == "eval")
    panels = [_of_evaluations(evaluations, name) for name in ("success", "reward")]
    panels.append(_of_losses([event for event in events if event["kind"] == "held_out"]))
    for title, names in PANELS.items():
        series = tuple(Series(label, _points(steps, name)) for name, label in names.items())
        panels.append(Panel(title, tuple(one for one in series if one.points)))
    panels += _of_sources(steps)
    outcomes = dict.fromkeys(key for step in steps for key in step if key.startswith(_OUTCOME))
    for key in list(outcomes)[:MAX_OUTCOME_PANELS]:
        name = key.removeprefix(_OUTCOME)
        panels.append(Panel(f"outcome: {name}", (Series(name, _points(steps, key)),)))
    return [panel for panel in panels if panel.series]


def _latest(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The evaluations in the order of the steps. If an evaluation was made again, the latest one counts."""
    by_place = {(event.get("split", ""), event.get("step", 0)): event for event in events}
    return sorted(by_place.values(), key=lambda event: float(event.get("step", 0)))


def _of_evaluations(events: Sequence[Mapping[str, Any]], name: str) -> Panel:
    splits = dict.fromkeys(str(event.get("split", "eval")) for event in events)
    series = []
    for split in splits:
        rows = [event for event in events if str(event.get("split", "eval")) == split]
        low, high = f"{name}_low", f"{name}_high"
        band = tuple(
            (float(row["step"]), row[low], row[high]) for row in rows if low in row and high in row
        )
        if points := _points(rows, name):
            series.append(Series(split, points, band))
    return Panel(f"held-out {name}", tuple(series), is_measured=True)


def _of_sources(steps: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """The training reward of each source of a mixture, a few of them in a panel."""
    metrics = dict.fromkeys(key for step in steps for key in step)
    sources = [key for key in metrics if re.fullmatch(r"batch/source/.*/reward", key)]
    series = [
        Series(key.split("/", 2)[2].removesuffix("/reward"), _points(steps, key)) for key in sources
    ]
    return [
        Panel("training reward by source", tuple(series[first : first + SOURCES_IN_PANEL]))
        for first in range(0, len(series), SOURCES_IN_PANEL)
    ]


def _of_losses(events: Sequence[Mapping[str, Any]]) -> Panel:
    points = _points(_latest(events), "loss")
    series = (Series("held-out data", points),) if points else ()
    return Panel("held-out loss", series, is_measured=True)


def _points(rows: Sequence[Mapping[str, Any]], name: str) -> tuple[Point, ...]:
    return tuple((float(row["step"]), row[name]) for row in rows if row.get(name) is not None)
