"""Evaluations that an earlier part of a resumed run recorded."""

from collections.abc import Mapping, Sequence
from typing import Any

from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.telemetry import RunDir

BEFORE = "before"
"""Name of the evaluation of the weights that a run begins with."""

_MEASURE = (
    "agent",
    "env",
    "command",
    "tasks",
    "eval_tasks",
    "mixture",
    "fields",
    "reward",
    "eval.tasks",
    "eval.samples",
    "eval.temperature",
    "rollout.max_turns",
    "rollout.max_new_tokens",
    "rollout.max_episode_tokens",
)
"""Settings, and tables of settings, that decide what an evaluation measures, and how."""


def recorded_before(run_dir: RunDir, splits: Sequence[str]) -> Mapping[str, EvalReport]:
    """The evaluations before training, by split; empty if later ones cannot be compared with them."""
    found: dict[str, EvalReport] = {}
    for event in run_dir.read_metrics():
        if event["kind"] == "resume" and any(map(_is_of_measure, event["changed"])):
            found.clear()
        if event["kind"] == "eval" and event["name"] == BEFORE and event["split"] in splits:
            found[event["split"]] = EvalReport.from_metrics(event["split"], _numbers(event))
    return found


def recorded_loss(run_dir: RunDir, name: str) -> Mapping[str, float]:
    """The loss on held-out data that a fine-tuning run recorded under `name`, as `NAME/loss`."""
    found: dict[str, float] = {}
    for event in run_dir.read_metrics(kind="held_out"):
        if event["name"] == name:
            numbers = {key: value for key, value in _numbers(event).items() if key not in _OF_EVENT}
            found = {f"{name}/{key}": value for key, value in numbers.items()}
    return found


_OF_EVENT = ("time", "step")


def _is_of_measure(key: str) -> bool:
    """Whether another value of the setting `key` makes other measurements.

    >>> _is_of_measure("reward.judge.model"), _is_of_measure("eval.every")
    (True, False)
    """
    return any(key == name or key.startswith(f"{name}.") for name in _MEASURE)


def _numbers(event: Mapping[str, Any]) -> dict[str, float]:
    return {key: value for key, value in event.items() if isinstance(value, (int, float))}
