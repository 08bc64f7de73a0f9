"""Which weights of a run are the best: what `checkpoints/best` holds, and how weights get there.

Only an evaluation that measured the exported weights from its first token to its last can choose the
best ones: what `best` holds is then what was measured. Beside training the weights may change under an evaluation. If it looks best, the
weights that it began with wait in `checkpoints/waiting`, to be measured again when the run ends.

A model name as commands take it: what `areal_sdk.models` knows, or a run's own weights.
"""

import logging
import math
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from areal_sdk.config import Config, RunSection, load_config
from areal_sdk.errors import ConfigError
from areal_sdk.fsdp.directories import STATE_FILE
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.gateway.tokens.template import ChatTemplate
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.loop.engines import check_engine_serves, engine_class
from areal_sdk.loop.state import latest_checkpoint
from areal_sdk.models import resolve_model
from areal_sdk.models.families import stored_dtype
from areal_sdk.plugins import Plugins
from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.files import to_json, write_atomically
from areal_sdk.telemetry.run_dir import BEST, MEASURED_FILE, WAITING, read_measured, scores_of

MAX_UNJUDGED = 0.1
"""Of two evaluations, one that judged so much less of its episodes does not win by its rewards."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What exported weights achieved. Stored beside them."""

    step: int
    """The step that made them."""
    success: float
    reward: float | None
    """None: a run of an earlier version stored only the success."""
    from_version: int
    """Of the weights that were measured: they may have changed under the evaluation."""
    to_version: int
    by: str = ""
    """Why these are the best: their `success`; where that is another's too, or says nothing, their
    `reward`; or that more of their episodes have `verdicts`. Empty for the first."""
    solved: float | None = None
    """Success over all episodes, those without a verdict included; None: as `success`."""
    judged: float = 1.0
    """Share of the episodes that have a verdict."""
    is_in_points: bool = False
    """A reward of 1 is a low score, and so success says nothing."""

    @classmethod
    def of(cls, report: EvalReport, *, step: int) -> Self | None:
        """None where nothing was scored."""
        if report.success is None or report.reward is None:
            return None
        first, last = report.versions or (step, step)
        return cls(
            step,
            report.success.value,
            report.reward.value,
            first,
            last,
            solved=report.solved,
            judged=report.judged,
            is_in_points=report.is_in_points,
        )

    @classmethod
    def read(cls, exported: Path) -> Self | None:
        """What was stored beside `exported`; None where nothing was."""
        values = read_measured(exported)
        if values is None:
            return None
        first = values.get("from_version", values["step"])
        return cls(
            values["step"],
            values["success"],
            values.get("reward"),
            first,
            values.get("to_version", first),
            values.get("by", ""),
            values.get("solved"),
            values.get("judged", 1.0),
            values.get("is_in_points", False),
        )

    @property
    def is_exact(self) -> bool:
        """Whether the exported weights, and no later ones, were measured. A step makes its version."""
        return self.from_version == self.to_version == self.step

    def is_better_than(self, other: "Measured | None") -> bool:
        """By success; the reward breaks a tie. The earlier one stays where both are equal."""
        if other is None:
            return True
        by = self.decided_by(other)
        return self._score(by) > other._score(by)

    def decided_by(self, other: "Measured") -> str:
        """What tells the two apart: `success`, `verdicts` or `reward`."""
        says_something = not (self.is_in_points or other.is_in_points)
        if says_something and self._score("success") != other._score("success"):
            return "success"
        return "verdicts" if abs(self.judged - other.judged) > MAX_UNJUDGED else "reward"

    def _score(self, by: str) -> float:
        match by:
            case "success":
                return self.success if self.solved is None else self.solved
            case "verdicts":
                return self.judged
            case _:
                return -math.inf if self.reward is None else self.reward

    def to_json(self) -> Mapping[str, Any]:
        return asdict(self)


class BestWeights:
    """The exported weights that a run keeps for its evaluations. Blocks while it moves directories."""

    def __init__(self, checkpoints: Path) -> None:
        """Goes on from what is on disk, which may be newer than the latest checkpoint."""
        self.waiting_dir = checkpoints / WAITING
        self._best_dir = checkpoints / BEST
        for kept in (self._best_dir, self.waiting_dir):
            _recover(kept)
        for leftover in checkpoints.glob(_candidate("*")):
            shutil.rmtree(leftover, ignore_errors=True)
        self.best = Measured.read(self._best_dir)
        self.waiting = Measured.read(self.waiting_dir)
        """Weights that looked better than the best while they changed."""

    def candidate_dir(self, step: int) -> Path:
        """Where to export the weights that an evaluation begins with."""
        return self._best_dir.with_name(_candidate(f"{step:06d}"))

    def offer(self, exported: Path, measured: Measured | None) -> None:
        """Keep `exported` if it is, or may be, the best; it is gone afterwards.

        None: nothing was scored. Weights that waited are offered as `waiting_dir`.
        """
        if exported == self.waiting_dir:
            self.waiting = None
        if measured is not None:
            self._compare(exported, measured)
        if self.waiting is not None and not self.waiting.is_better_than(self.best):
            self.waiting = None
        if exported != self.waiting_dir:
            shutil.rmtree(exported, ignore_errors=True)
        if self.waiting is None:
            shutil.rmtree(self.waiting_dir, ignore_errors=True)

    def _compare(self, exported: Path, measured: Measured) -> None:
        if measured.is_exact:
            if measured.is_better_than(self.best):
                self._set_best(exported, measured)
            else:
                self._note_rival(measured)
        elif exported != self.waiting_dir and all(
            measured.is_better_than(other) for other in (self.best, self.waiting)
        ):
            _keep(exported, self.waiting_dir, measured)
            self.waiting = measured

    def _set_best(self, exported: Path, measured: Measured) -> None:
        if self.best is not None:
            measured = replace(measured, by=measured.decided_by(self.best))
        _keep(exported, self._best_dir, measured)
        self.best = measured

    def _note_rival(self, rival: Measured) -> None:
        """The best is no longer the only one that was measured."""
        assert self.best is not None
        decided = rival.decided_by(self.best)
        by = decided if decided != "success" else self.best.by or decided
        if by != self.best.by:
            self.best = replace(self.best, by=by)
            write_atomically(self._best_dir / MEASURED_FILE, to_json(self.best.to_json()))


def _candidate(step: str) -> str:
    return f"candidate-{step}"


def _keep(exported: Path, kept: Path, measured: Measured) -> None:
    """Put `exported` in the place of `kept`. Killed at any point, one of them is still there."""
    write_atomically(exported / MEASURED_FILE, to_json(measured.to_json()))
    old = _set_aside(kept)
    shutil.rmtree(old, ignore_errors=True)
    if kept.exists():
        kept.rename(old)
    exported.rename(kept)
    shutil.rmtree(old, ignore_errors=True)


def _recover(kept: Path) -> None:
    """After a kill between two renames."""
    old = _set_aside(kept)
    if old.exists() and not kept.exists():
        old.rename(kept)
    shutil.rmtree(old, ignore_errors=True)


def _set_aside(kept: Path) -> Path:
    return kept.with_name(f".{kept.name}.old")


logger = logging.getLogger(__name__)

EXPORTS = (BEST, "final", WAITING)
"""The last: of a run that did not get to its end, weights whose evaluation they changed under."""


def find_model(name: str) -> Path:
    """The directory of model `name`; for a run its best weights, else its last, finished or not.

    Weights that wait to be measured again looked best to an evaluation, and come before the last.
    Of a run that was interrupted, and for `RUN/checkpoints/step-N`, the weights of a checkpoint are
    exported first, once: that takes seconds to minutes.
    """
    path = Path(name).expanduser()
    if (path / STATE_FILE).is_file():
        return _exported(path)
    if not (path / "config.toml").is_file():
        if not path.exists() and _is_among_runs(path):
            raise ConfigError(f"no such run: {path}")
        if not path.exists() and (path.parent.parent / "config.toml").is_file():
            there = sorted(p.name for p in path.parent.glob("[!.]*"))
            raise ConfigError(
                f"no {path.name} in {path.parent}; there: {', '.join(there) or 'none'}"
            )
        return resolve_model(name)
    checkpoints = path / "checkpoints"
    latest = latest_checkpoint(checkpoints)
    for export in EXPORTS:
        directory = checkpoints / export
        is_outdated = export == "final" and latest is not None and _is_newer(latest, directory)
        if (directory / "config.json").is_file() and not is_outdated:
            return directory
    if latest is None:
        raise ConfigError(
            f"{path} has no weights yet (checkpoints/best, /final or /step-N): "
            f"finish it with: {RunDir(path).how_to_resume()}"
        )
    logger.warning("%s is not finished: the weights are those of %s", path, latest.name)
    return _exported(latest)


def sampling_dtype(config: Config, model_dir: Path) -> str:
    """What the engine samples with, and so the type of exported weights."""
    return stored_dtype(model_dir) if config.engine.dtype == "auto" else config.engine.dtype


def find_served_model(config: Config, *, plugins: Plugins) -> Path:
    """The directory of the model to sample from; ConfigError where gateway or engine would refuse it."""
    engine_class(config, plugins).check_installed()
    directory = find_model(config.model)
    check_served(config, directory, plugins)
    return directory


def check_served(config: Config, directory: Path, plugins: Plugins) -> None:
    """ConfigError for a model that the gateway or the engine would refuse."""
    template = ChatTemplate.load(directory)
    Renderer(Tokenizer.load(directory), template, tool_format=config.gateway.tool_format)
    check_engine_serves(config, directory, plugins)


def whose_weights(model_dir: Path) -> str:
    """Which of a run's weights these are, and what they achieved; empty for any other model."""
    measured, name = read_measured(model_dir), model_dir.name
    if model_dir.parent.name != "checkpoints" or name not in EXPORTS:
        return ""
    found = f"weights: checkpoints/{name} of {model_dir.parent.parent}"
    if measured is None:
        return found
    doubt = ", while they changed" if name == WAITING else ""
    return f"{found}: step {measured['step']}, {scores_of(measured)}{doubt}"


def _is_among_runs(path: Path) -> bool:
    """Whether `path` stands where runs do: `runs/nope` is no id for the hub."""
    default = path.parent == Path(RunSection().dir)
    return default or any(path.parent.glob("*/config.toml"))


def _is_newer(checkpoint: Path, export: Path) -> bool:
    """Whether the run went on after it had written its final weights, if it has."""
    if not (export / "config.json").is_file():
        return True
    return (checkpoint / STATE_FILE).stat().st_mtime > (export / "config.json").stat().st_mtime


def _exported(checkpoint: Path) -> Path:
    """The model directory in `checkpoint`, made by a process of its own: this one has no torch."""
    directory = checkpoint / "export"
    if (directory / "config.json").is_file():
        return directory
    settings = checkpoint.absolute().parent.parent / "config.toml"
    if not settings.is_file():
        raise ConfigError(
            f"{checkpoint} is a checkpoint without its run, which knows the model that was trained: "
            "put it back into the run's checkpoints/"
        )
    config = load_config(file=settings)
    model_dir = find_model(config.init_from or config.model)
    command = [sys.executable, "-P", "-m", "areal_sdk.fsdp.checkpoint"]
    command += [str(checkpoint), str(directory), str(model_dir), sampling_dtype(config, model_dir)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip() or "it was killed").splitlines()[-1]
        raise ConfigError(
            f"the weights of {checkpoint} cannot be exported ({why}); to see more: "
            f"{shlex.join(command)}"
        )
    return directory
