"""The lines of an evaluation: its event in the metrics, and what a user reads."""

from collections.abc import Iterator
from typing import Any

from areal_sdk.rollout.evaluation import EvalReport


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
