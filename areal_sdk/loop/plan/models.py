"""Which model a run starts from or serves: the directory of its weights, and its engine.

A model is named as in `--model`: a name that `areal_sdk.models` knows, a directory, or a run.
"""

import fcntl
import hashlib
import json
import logging
from pathlib import Path

from areal_sdk.config import Config, RunSection, load_config
from areal_sdk.errors import ArealError, ConfigError
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.gateway.tokens.template import ChatTemplate
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.loop.plan.parts import (
    check_engine_serves,
    engine_class,
    load_plugins_of,
    make_trainer,
)
from areal_sdk.loop.plan.program import load_program
from areal_sdk.loop.state import latest_checkpoint, step_of
from areal_sdk.models import resolve_model
from areal_sdk.models.checkpoint import copy_all_but_weights, write_json
from areal_sdk.models.families import check_speaks, read_config, stored_dtype
from areal_sdk.plugins import Plugins
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.directories import whole_directory
from areal_sdk.telemetry.run_dir import BEST, WAITING, read_measured, scores_of

logger = logging.getLogger(__name__)

EXPORTS = (BEST, "final", WAITING)
"""The last: of a run that did not get to its end, weights whose evaluation they changed under."""

FINGERPRINT_BYTES = 2**20
"""Of the beginning and the end of each file of weights."""


def find_model(name: str) -> Path:
    """The directory of model `name`; for a run its best weights, else its last, finished or not.

    Weights that wait to be measured again looked best to an evaluation, and come before the last.
    Of a run that was interrupted, and for `RUN/checkpoints/step-N`, the weights of a checkpoint are
    exported first, once: that takes seconds to minutes.
    """
    path = Path(name).expanduser()
    if _is_checkpoint(path):
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


def find_origin(model_dir: Path, run_dir: RunDir, *, must_be_same: bool) -> Path:
    """The directory of the weights that the run began with, the same one after each resume.

    `model_dir` is what the settings name now: of another run, that may be better weights than those
    this run began with. ConfigError if the first weights are gone and `must_be_same`.
    """
    if not run_dir.origin.is_file():
        began = {"directory": str(model_dir.absolute()), "weights": _fingerprint(model_dir)}
        write_json(run_dir.origin, began)
        return model_dir
    began = json.loads(run_dir.origin.read_text())
    for candidate in (Path(began["directory"]), model_dir):
        if _fingerprint(candidate) == began["weights"]:
            return candidate
    if must_be_same:
        raise ConfigError(
            f"the weights in {began['directory']} are not those that the run began with, and its KL "
            "holds the policy to those: put them back, or begin a new run"
        )
    return model_dir


def find_served_model(config: Config, *, plugins: Plugins) -> Path:
    """The directory of the model to sample from; ConfigError where gateway or engine would refuse it."""
    engine_class(config, plugins).check_installed()
    directory = find_model(config.model)
    check_served(config, directory, plugins)
    return directory


def find_trained_model(config: Config, *, plugins: Plugins) -> Path:
    """The directory of the model that a run starts from; ConfigError unless the run can use it.

    Installed packages are looked at first, since a model may have to be fetched.
    """
    engine_class(config, plugins).check_installed()
    directory = find_model(config.init_from or config.model)
    make_trainer(config, directory, plugins=plugins, log_dir=Path(), say=logger.warning)
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


def _fingerprint(model_dir: Path) -> str:
    """Tells weights apart by the names, sizes and ends of their files: training changes all of them."""
    digest = hashlib.sha256()
    for path in sorted(model_dir.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}".encode())
        with path.open("rb") as file:
            digest.update(file.read(FINGERPRINT_BYTES))
            file.seek(max(0, size - FINGERPRINT_BYTES))
            digest.update(file.read())
    return digest.hexdigest()


def _is_among_runs(path: Path) -> bool:
    """Whether `path` stands where runs do: `runs/nope` is no id for the hub."""
    default = path.parent == Path(RunSection().dir)
    return default or any(path.parent.glob("*/config.toml"))


def _is_checkpoint(path: Path) -> bool:
    """Whether `path` is in a run's checkpoints, or named like one, and is no model."""
    is_named = path.parent.name == "checkpoints" or step_of(path) is not None
    return is_named and path.is_dir() and not (path / "config.json").is_file()


def _is_newer(checkpoint: Path, export: Path) -> bool:
    """Whether the run went on after it had written its final weights, if it has."""
    if not (export / "config.json").is_file():
        return True
    files = [path for path in checkpoint.glob("[!.]*") if path.is_file()]
    written = max(path.stat().st_mtime for path in files or [checkpoint])
    return written > (export / "config.json").stat().st_mtime


def _exported(checkpoint: Path) -> Path:
    """The model directory in `checkpoint`, made by the trainer of its run."""
    directory = checkpoint / "export"
    if (directory / "config.json").is_file():
        return directory
    run = RunDir(checkpoint.absolute().parent.parent)
    if not run.config.is_file():
        raise ConfigError(
            f"{checkpoint} is a checkpoint without its run, which knows the model that was trained: "
            "put it back into the run's checkpoints/"
        )
    config = load_config(file=run.config)
    is_kept = run.model.is_dir()
    model_dir = run.model if is_kept else find_model(config.init_from or config.model)
    trainer = make_trainer(
        config,
        model_dir,
        plugins=_plugins_of_run(config),
        log_dir=run.logs,
        say=logger.info,
        only_exports=True,
    )
    with (checkpoint / ".export.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (directory / "config.json").is_file():
            return directory  # another process made it meanwhile
        try:
            trainer.export_checkpoint(checkpoint, directory)
        except ArealError as exc:
            raise ConfigError(f"the weights of {checkpoint} cannot be exported ({exc})") from exc
    return directory


def _plugins_of_run(config: Config) -> Plugins:
    """The plugins of a run that was begun before. The agent's file may bring its trainer."""
    plugins = load_plugins_of(config)
    if config.trainer.name not in plugins.trainers and config.agent:
        load_program(config, plugins=plugins)
    return plugins


def keep_description(model_dir: Path, run_dir: RunDir) -> None:
    """Copy all of the model but its weights into the run: a checkpoint needs it to become a model."""
    if run_dir.model.is_dir():
        return
    with whole_directory(run_dir.model) as partial:
        copy_all_but_weights(model_dir, partial)
        description = {**read_config(partial), "dtype": stored_dtype(model_dir)}
        write_json(partial / "config.json", description)
