"""The play of a probe: groups of attempts under the settings of a training run, and the same answers scored again."""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import areal_sdk
from areal_sdk import Episode, Run
from areal_sdk.flow import RolloutSection

Settings = Mapping[str, Any]
Row = Mapping[str, Any]
TRAIN = "train"


@dataclass(frozen=True, slots=True)
class Played:
    """The episodes of a probe, and the replays of their answers."""

    report: Any
    """The report of `areal_sdk.evaluate`."""
    run: Run
    rows: Sequence[Row]
    episodes: Sequence[Episode]
    """The episodes of `rows`, in their order."""
    replays: Sequence[Sequence[Episode]]


def play(
    agent: str | None,
    settings: Settings,
    *,
    split: str = TRAIN,
    num_groups: int,
    num_replays: int,
    quiet: bool = False,
) -> Played:
    """Play `num_groups` tasks of `split`, `rollout.group_size` attempts each. The run directory keeps them."""
    values = _as_evaluation(settings, split, num_groups=num_groups)
    report = areal_sdk.evaluate(agent, split=split, record=True, quiet=quiet, **values)
    run = Run(report.run_dir)
    rows = run.episodes()
    replays = []
    if report.num_scored:
        with tempfile.TemporaryDirectory(prefix="areal-sdk-probe-") as scratch:
            again = _as_replay(values, run, scratch)
            for _ in range(num_replays):
                replayed = areal_sdk.evaluate(agent, split=split, record=True, quiet=True, **again)
                found = Run(replayed.run_dir)
                replays.append(found.whole(found.episodes()))
    return Played(report, run, rows, run.whole(rows), replays)


def _as_evaluation(settings: Settings, split: str, *, num_groups: int) -> dict[str, Any]:
    """The settings of an evaluation that plays as training would: same temperature, groups and concurrency."""
    values = dict(settings)
    rollout = RolloutSection()
    with suppress(ValueError):  # the evaluation refuses what is wrong, in its own words
        rollout = RolloutSection.model_validate(values.get("rollout", {}))
    if split == TRAIN:
        values.pop("eval_tasks", None)
    values["run"] = {key: value for key, value in values.get("run", {}).items() if key != "name"}
    values["eval"] = {
        **values.get("eval", {}),
        "tasks": num_groups,
        "samples": rollout.group_size,
        "temperature": rollout.temperature,
        "max_concurrency": rollout.max_inflight,
    }
    return values


def _as_replay(values: Settings, run: Run, scratch: str) -> dict[str, Any]:
    """The same settings with the record in place of the model."""
    rollout = {**values.get("rollout", {}), "nodes": 1, "infra_retries": 0}
    engine = {"name": "replay", "replay": {"run": str(run.path)}}
    return {
        **values,
        "rollout": rollout,
        "engine": engine,
        "run": {**values["run"], "dir": scratch},
    }
