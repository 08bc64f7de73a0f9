"""Evaluations in the metrics: the event of one, the lines that a user reads of it, and what an earlier part of a
resumed run recorded."""

from collections.abc import Iterator, Mapping, Sequence
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


def eval_event(name: str, report: EvalReport, *, step: int) -> dict[str, Any]:
    """The line of an evaluation in the metrics; `step` made the weights it began with."""
    first, last = report.versions or (step, step)
    return {
        "name": name,
        "split": report.split,
        "step": step,
        **report.metrics(),
        "from_version": first,
        "to_version": last,
    }


def title_of(name: str, split: str) -> str:
    """The name of an evaluation while it goes on.

    >>> title_of("before", "eval"), title_of("step-10", "hard")
    ('evaluating before', 'evaluating step-10 (hard)')
    """
    return f"evaluating {name}" + ("" if split == "eval" else f" ({split})")


def lines_of(name: str, report: EvalReport, *, step: int) -> Iterator[str]:
    """The lines that a user reads at the end of an evaluation; `step` made the weights it began with."""
    first, last = report.versions or (step, step)
    weights = f"weights v{first}" if first == last else f"weights v{first}-v{last}"
    success = report.success or "-"
    without = report.num_episodes - report.num_scored
    unjudged = f"; {without} of {report.num_episodes} episodes not scored" if without else ""
    reward = f"{report.reward.value:.3f}" if report.reward else "-"
    yield (
        f"{name}: {report.split}: success {success}, reward {reward}, "
        f"{report.of_tasks} tasks in {report.duration_s:.0f} s, {weights}{unjudged}"
    )
    if report.uncalled:
        yield f"warning: {name}: {report.split}: {report.uncalled}"
    for source, part in report.by_source.items():
        rate = f"{part.success.value:.3f}" if part.success else "-"
        mean = f"{part.reward.value:.3f}" if part.reward else "-"
        yield f"  {source}: success {rate}, reward {mean}, {part.num_tasks} tasks"
    for kind, message in report.first_errors.items():
        yield f"  {report.errors[kind]} x {kind}: {message}"
