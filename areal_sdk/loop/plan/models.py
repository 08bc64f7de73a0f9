"""Which model a run starts from or serves: the directory of its weights, and its engine.

A model is named as in `--model`: a name that `areal_sdk.models` knows, a directory, or a run.
"""

import logging
import shlex
import subprocess
import sys
from pathlib import Path

from areal_sdk.config import Config, RunSection, load_config
from areal_sdk.errors import ConfigError
from areal_sdk.fsdp.directories import STATE_FILE
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.gateway.tokens.template import ChatTemplate
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.loop.plan.parts import check_engine_serves, engine_class, sampling_dtype
from areal_sdk.loop.state import latest_checkpoint
from areal_sdk.models import resolve_model
from areal_sdk.models.families import check_speaks
from areal_sdk.plugins import Plugins
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.run_dir import BEST, WAITING, read_measured, scores_of

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


def find_served_model(config: Config, *, plugins: Plugins) -> Path:
    """The directory of the model to sample from; ConfigError where gateway or engine would refuse it."""
    engine_class(config, plugins).check_installed()
    directory = find_model(config.model)
    check_served(config, directory, plugins)
    return directory


def check_served(config: Config, directory: Path, plugins: Plugins) -> None:
    """ConfigError for a model that the gateway or the engine would refuse."""
    check_speaks(directory)
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
    step = f"step {measured['step']}" if measured["step"] else "before training"
    return f"{found}: {step}, {scores_of(measured)}{doubt}"


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
