"""A model name as commands take it: what `areal_sdk.models` knows, or a run's own weights."""

from pathlib import Path

from areal_sdk.backends.local.architecture import Architecture
from areal_sdk.config import Config, RunSection
from areal_sdk.errors import ConfigError, EngineError, require_package
from areal_sdk.gateway.renderer import Renderer
from areal_sdk.gateway.templates import ChatTemplate
from areal_sdk.gateway.tokenizer import Tokenizer
from areal_sdk.loop.engines import is_sglang, make_engine
from areal_sdk.models import resolve_model
from areal_sdk.models.checkpoint import check_safetensors
from areal_sdk.models.families import check_trained
from areal_sdk.plugins import Plugins
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.rundir import BEST, WAITING, read_measured, scores_of

EXPORTS = (BEST, "final", WAITING)
"""The last: of a run that did not get to its end, weights whose evaluation they changed under."""


def find_model(name: str) -> Path:
    """The directory of model `name`; for a run directory its best weights, else its last."""
    path = Path(name).expanduser()
    if not (path / "config.toml").is_file():
        if not path.exists() and _is_among_runs(path):
            raise ConfigError(f"no such run: {path}")
        return resolve_model(name)
    for export in EXPORTS:
        if (path / "checkpoints" / export / "config.json").is_file():
            return path / "checkpoints" / export
    raise ConfigError(
        f"{path} has no exported weights yet (checkpoints/best or /final): "
        f"finish it with: {RunDir(path).how_to_resume()}"
    )


def find_trained_model(config: Config, *, plugins: Plugins) -> Path:
    """The directory of the model that a run starts from; ConfigError unless the run can use it.

    Installed packages are looked at first, since a model may have to be fetched.
    """
    for package in ("torch", "transformers", "safetensors"):
        require_package(package, extra="train", needed_for="training")
    directory = find_model(config.init_from or config.model)
    check_trained(directory)
    _check_served(config, directory, plugins)
    return directory


def find_served_model(config: Config, *, plugins: Plugins) -> Path:
    """The directory of the model to sample from; ConfigError where gateway or engine would refuse it."""
    if config.engine.name == "local":
        require_package("torch", extra="train", needed_for="the local engine")
    directory = find_model(config.model)
    _check_served(config, directory, plugins)
    return directory


def _check_served(config: Config, directory: Path, plugins: Plugins) -> None:
    template = ChatTemplate.load(directory)
    Renderer(Tokenizer.load(directory), template, tool_format=config.gateway.tool_format)
    if config.engine.name == "local":
        check_safetensors(directory)
        try:
            Architecture.load(directory)
        except EngineError as exc:
            raise ConfigError(str(exc)) from None
    if config.engine.name == "local" or is_sglang(config.engine.name):
        make_engine(config, directory, plugins=plugins, log_dir=Path())


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
