"""Where a run is: what a checkpoint stores beside the weights, and what the live view shows."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from areal_sdk.config.keys import leaves
from areal_sdk.rollout.evaluation import EvalReport


@dataclass(slots=True)
class RunState:
    """Written into every checkpoint; enough, with the weights, to go on as if nothing happened."""

    step: int = 0
    """Optimiser steps and label-only updates since the run began."""
    train_seconds: float = 0.0
    """Time spent training, evaluation before and after excluded."""
    ledger: Mapping[str, Any] = field(default_factory=dict)
    tasks: Mapping[str, Any] = field(default_factory=dict)
    """Which tasks are consumed: trained, or dropped for good."""

    @property
    def version(self) -> int:
        """Of the weights: each step publishes one, and a warm-up is published as version 0."""
        return self.step

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def update_from(self, values: Mapping[str, Any]) -> None:
        """Become what a checkpoint stored; older ones also store the version and the best weights."""
        for field_ in fields(self):
            setattr(self, field_.name, values[field_.name])


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What a finished (or interrupted) run amounts to."""

    run_dir: str
    steps: int
    version: int
    train_seconds: float
    ended: str
    """`steps`, `max_minutes`, `success`, `tasks`, `solved or hopeless`, or `interrupted`."""
    before: Mapping[str, EvalReport] = field(default_factory=dict)
    """What was measured before training, by split."""
    after: Mapping[str, EvalReport] = field(default_factory=dict)
    ledger: Mapping[str, Any] = field(default_factory=dict)
    saved_step: int | None = None
    """Where a resumed run would go on; None: nothing was saved."""
    best: Mapping[str, Any] | None = None
    """What the best weights achieved, and after which step; None where none were kept."""
    had_ended: bool = False
    """It was to be resumed, and nothing was left to do."""
    elapsed_s: float = 0.0
    """From its start (or resumption) to its end, loading and evaluations included."""

    @property
    def lost(self) -> str:
        """What an interrupted run would have to do again."""
        if self.saved_step is not None and self.saved_step >= self.steps:
            return f"step {self.saved_step} is saved: no step is lost"
        if not self.steps:
            return "no step was taken: a resumed run begins anew"
        first = (self.saved_step or 0) + 1
        steps = f"step {first}" if first == self.steps else f"steps {first} to {self.steps}"
        again = "it" if first == self.steps else "them"
        return f"{steps} could not be saved: a resumed run takes {again} again"

    def to_json(self) -> dict[str, Any]:
        values = {field_.name: getattr(self, field_.name) for field_ in fields(self)}
        for name in ("before", "after"):
            values[name] = {split: report.metrics() for split, report in values[name].items()}
        return values

    def numbers(self) -> dict[str, float]:
        """Its numbers, flat: `steps`, `after/eval/success`, `ledger/dropped/stale`."""
        return flat_numbers(self.to_json())


def flat_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers inside, for those who observe a run.

    >>> flat_numbers({"step": 3, "note": "", "ledger": {"trained": 16, "dropped": {"stale": 2}}})
    {'step': 3.0, 'ledger/trained': 16.0, 'ledger/dropped/stale': 2.0}
    """
    return {
        "/".join(parts): float(value)
        for parts, value in leaves(values)
        if isinstance(value, (int, float))
    }
