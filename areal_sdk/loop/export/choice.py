"""The choice of a run's weights to export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from areal_sdk.errors import ConfigError
from areal_sdk.loop.learning.state import PREFIX, good_checkpoint, step_of
from areal_sdk.loop.plan.models import EXPORTS, FINAL, refuse_mirror, weights_of
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.run_dir import BEST, read_measured

Which = Literal["best", "last"]


@dataclass(frozen=True, slots=True)
class Choice:
    """The weights to export: an exported model of the run, or one of its checkpoints."""

    run: RunDir
    weights: Path
    step: int
    """The step that made the weights."""

    @property
    def name(self) -> str:
        """The weights in words.

        >>> Choice(RunDir(Path("runs/a")), Path("runs/a/checkpoints/best"), 40).name
        'the best of the evaluations, after step 40'
        """
        which = {BEST: "the best of the evaluations, after ", FINAL: "the last, after "}
        return which.get(self.weights.name, "") + (f"step {self.step}" if self.step else "no step")


def choose(run: RunDir, which: Which | None = None, *, step: int | None = None) -> Choice:
    """The weights that were asked for; by default the best ones, else the last, as for `--model RUN`.

    ConfigError if the run does not have them.
    """
    refuse_mirror(run)
    if step is not None:
        weights = run.checkpoints / f"{PREFIX}{step:06d}"
        if not weights.is_dir():
            weights = good_checkpoint(run.checkpoints, step)
        if not weights.is_dir():
            steps = sorted({s for p in run.checkpoints.glob("*-*") if (s := step_of(p))})
            there = f"there: {', '.join(map(str, steps))}" if steps else "it has none"
            raise ConfigError(
                f"{run.path} has no checkpoint of step {step}; {there} (run.checkpoint_every and "
                "run.keep_checkpoints say which are kept)"
            )
        return Choice(run, weights, step)
    if which == "best" and not (run.checkpoints / BEST / "config.json").is_file():
        raise ConfigError(
            f"{run.path} has no best weights: no evaluation chose any (eval.every, eval.keep_best); "
            "export the last ones with --last"
        )
    weights = weights_of(run, (FINAL,) if which == "last" else EXPORTS)
    return Choice(run, weights, _step_of_model(run, weights))


def _step_of_model(run: RunDir, weights: Path) -> int:
    if (step := step_of(weights)) is not None:
        return step
    if (measured := read_measured(weights)) is not None:
        return int(measured["step"])
    steps = run.read_steps()
    return int(steps[-1]["step"]) if steps else 0
