"""The model that a run starts from or serves: the directory of its weights, and its engine.

A model is named as in `--model`: a name that `areal_sdk.models` knows, a directory, or a run.
"""

import fcntl
import json
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from areal_sdk.config import Config, RunSection, load_config
from areal_sdk.errors import ArealError, ConfigError
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.loop.learning.state import GOOD, good_checkpoint, latest_checkpoint, step_of
from areal_sdk.loop.plan.parts import (
    check_engine_serves,
    engine_class,
    find_preset,
    load_plugins_of,
    make_trainer,
)
from areal_sdk.loop.plan.program import load_program
from areal_sdk.models import BUILT_IN, HUB_IDS, resolve_model
from areal_sdk.models.checkpoint import copy_all_but_weights, fingerprint, write_json
from areal_sdk.models.families import check_speaks, read_config, stored_dtype
from areal_sdk.plugins import Plugins, ToolFormats
from areal_sdk.process.user_code import load_user_object
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.directories import is_mirror, refuse_address, whole_directory
from areal_sdk.telemetry.files import to_json, write_atomically
from areal_sdk.telemetry.metrics import last_event
from areal_sdk.telemetry.run_dir import (
    BEST,
    WAITING,
    read_measured,
    scores_of,
)
from areal_sdk.trainer import PresetSpec, Trainer

logger = logging.getLogger(__name__)

FINAL = "final"
EXPORTS = (BEST, FINAL, WAITING)
"""Names of a run's exports, the preferred one first. Only a run that did not end has the last one: weights that changed
while they were evaluated."""


@dataclass(frozen=True, slots=True)
class FoundModel:
    """The model of a run, found and checked."""

    directory: Path
    renderer: Renderer
    """Renderer of the model's chats. Reading the tokenizer takes time, so it is read once."""
    tool_formats: ToolFormats
    """The formats that the renderer chose from."""

    @property
    def tool_format(self) -> str:
        """The reference of the format of tool calls, for another process to import."""
        return self.tool_formats.reference(self.renderer.tool_format.name)

    def of(self, directory: Path, config: Config) -> "FoundModel":
        """The model in `directory`: this object, if that is its own directory."""
        if directory == self.directory:
            return self
        return found_model(directory, config, self.tool_formats)


def found_model(directory: Path, config: Config, formats: ToolFormats) -> FoundModel:
    """The model in `directory`, with the renderer by which the gateway writes and reads its chats."""
    named = config.gateway.tool_format
    renderer = Renderer.load(
        directory,
        tool_format=None if named is None else formats.get(named),
        formats=formats.in_order(),
    )
    return FoundModel(directory, renderer, formats)


def load_renderer(directory: str, tool_format: str) -> Renderer:
    """The renderer of another process: `tool_format` is the reference of the format that it chose."""
    return Renderer.load(Path(directory), tool_format=load_user_object(tool_format))


def find_model(name: str) -> Path:
    """The directory of model `name`. For a run: its best weights, else its final ones, else its newest checkpoint.

    Weights that wait to be measured again, because they looked best to an evaluation, come before a checkpoint. The
    weights of a checkpoint, also those of `RUN/checkpoints/step-N`, are exported first, once: this takes seconds to
    minutes.
    """
    refuse_address(name)
    path = Path(name).expanduser()
    if _is_checkpoint(path):
        return _exported(path)
    if not (path / "config.toml").is_file():
        if not path.exists() and name not in BUILT_IN and _is_among_runs(path):
            raise ConfigError(f"no such run: {path}")
        if not path.exists() and (path.parent.parent / "config.toml").is_file():
            there = sorted(p.name for p in path.parent.glob("[!.]*"))
            raise ConfigError(
                f"no {path.name} in {path.parent}; there: {', '.join(there) or 'none'}"
            )
        return resolve_model(name)
    weights = weights_of(RunDir(path))
    if not _is_checkpoint(weights):
        return weights
    why = "ended with worse weights" if weights.name.startswith(GOOD) else "is not finished"
    logger.warning("%s %s: the weights are those of %s", path, why, weights.name)
    return _exported(weights)


def refuse_mirror(run: RunDir) -> None:
    """Raise ConfigError for the mirror of a run, in which weights have other names."""
    if is_mirror(run.path):
        raise ConfigError(
            f"{run.path} is the mirror of a run: for its weights, areal-sdk fetch {run.path}, then name the copy"
        )


def weights_of(run: RunDir, among: Sequence[str] = EXPORTS) -> Path:
    """The weights that a run offers: the first existing model of `among`, else its newest checkpoint."""
    refuse_mirror(run)
    latest = latest_checkpoint(run.checkpoints)
    if BEST in among and (better := _better_than_last(run)) is not None:
        return better
    for export in among:
        directory = run.checkpoints / export
        is_outdated = export == FINAL and latest is not None and _is_newer(latest, directory)
        if (directory / "config.json").is_file() and not is_outdated:
            return directory
    if latest is None:
        raise ConfigError(
            f"{run.path} has no weights yet (checkpoints/best, /final or /step-N): "
            f"finish it with: {run.how_to_resume()}"
        )
    return latest


def _better_than_last(run: RunDir) -> Path | None:
    """The weights that the guard kept, if the run ended with clearly worse ones and no evaluation chose better ones."""
    step = last_event(run.read_metrics()).get("better")
    if step is None or (run.checkpoints / BEST / "config.json").is_file():
        return None
    kept = good_checkpoint(run.checkpoints, step)
    return kept if kept.is_dir() else None


def find_origin(model_dir: Path, run_dir: RunDir, *, must_be_same: bool) -> Path:
    """The directory of the weights that the run began with, the same one after each resume.

    `model_dir` is the directory that the settings name now. If they name another run, that may have better weights by
    now. ConfigError if the first weights are gone and `must_be_same`.
    """
    if not run_dir.origin.is_file():
        began = {"directory": str(model_dir.absolute()), "weights": fingerprint(model_dir)}
        write_atomically(run_dir.origin, to_json(began, indent=True))
        return model_dir
    began = json.loads(run_dir.origin.read_text(encoding="utf-8"))
    for candidate in (Path(began["directory"]), model_dir):
        if fingerprint(candidate) == began["weights"]:
            return candidate
    if must_be_same:
        raise ConfigError(
            f"the weights in {began['directory']} have changed since the run began, and its KL or its "
            "adapter needs the old ones: put the old files back, or begin a new run"
        )
    return model_dir


def first_weights(run_dir: RunDir) -> Path | None:
    """The model that the run began with, if its files are still what they were."""
    with suppress(OSError, ConfigError, json.JSONDecodeError):
        began = json.loads(run_dir.origin.read_text(encoding="utf-8"))
        directory = Path(began["directory"])
        if fingerprint(directory) == began["weights"]:
            return directory
    return None


def at_origin(
    model: FoundModel, run_dir: RunDir, config: Config, *, reads_reference: bool = False
) -> FoundModel:
    """`model` with the weights that the run began with.

    An adapter, and a KL to the reference, are nothing without these weights: ConfigError if they are gone.
    """
    must_be_same = reads_reference or bool(config.trainer.lora.rank)
    return model.of(find_origin(model.directory, run_dir, must_be_same=must_be_same), config)


def find_base(run_dir: RunDir, config: Config) -> Path:
    """The model whose adapter the run trains; ConfigError if it is gone or has changed."""
    if (directory := first_weights(run_dir)) is not None:
        return directory
    began = json.loads(run_dir.origin.read_text(encoding="utf-8"))
    with suppress(ConfigError):
        named = find_model(config.init_from or config.model)
        if fingerprint(named) == began["weights"]:
            return named
    raise ConfigError(
        f"{run_dir.path} trains an adapter of the model in {began['directory']}, and the weights there are gone "
        "or have changed: put the old files back"
    )


def with_model_of_run(config: Config) -> Config:
    """The settings with the model of the run `init_from`; ConfigError if `model` says another."""
    if config.init_from is None:
        return config
    model = _trained_model(config.init_from)
    if "model" not in config.model_fields_set:
        return config.model_copy(update={"model": model})
    named = _trained_model(config.model)
    if _run_of(config.init_from) and HUB_IDS.get(named, named) != HUB_IDS.get(model, model):
        raise ConfigError(
            f"model = {config.model!r}, but {config.init_from} (init_from) has trained {model!r}: leave the model "
            "out (--model) to begin with the weights of this run, or leave init_from out"
        )
    return config


def _run_of(name: str) -> RunDir | None:
    """The run `name`, or the run of the checkpoint `name`."""
    path = Path(name).expanduser()
    run = RunDir(path.parent.parent if path.parent.name == "checkpoints" else path)
    return run if run.config.is_file() else None


def _trained_model(name: str) -> str:
    """The model with which a run, or the first of the runs before it, began; `name` itself if it is no run."""
    if (run := _run_of(name)) is None:
        path = Path(name).expanduser()
        return str(path.absolute()) if path.is_dir() and name not in BUILT_IN else name
    settings = run.read_config()
    earlier = settings.get("init_from", "")
    return _trained_model(earlier if _run_of(earlier) else settings.get("model", name))


def find_served_model(config: Config, *, plugins: Plugins) -> FoundModel:
    """The model to sample from; ConfigError if gateway or engine would refuse it."""
    engine_class(config, plugins).check_installed()
    return check_served(config, find_model(config.model), plugins)


def find_trained_model(config: Config, *, plugins: Plugins, preset: PresetSpec) -> FoundModel:
    """The model that a run starts from. ConfigError unless the run can use it. Missing packages are reported first,
    since a model may have to be fetched."""
    engine_class(config, plugins).check_installed()
    directory = find_model(config.init_from or config.model)
    make_trainer(
        config, directory, plugins=plugins, preset=preset, log_dir=Path(), say=logger.warning
    )
    return check_served(config, directory, plugins)


def check_served(config: Config, directory: Path, plugins: Plugins) -> FoundModel:
    """The model in `directory`; ConfigError if the gateway or the engine would refuse it."""
    model = check_chats(config, directory, plugins)
    check_engine_serves(config, directory, plugins)
    return model


def check_chats(config: Config, directory: Path, plugins: Plugins) -> FoundModel:
    """The model in `directory`; ConfigError if the gateway would refuse it. No engine is asked."""
    check_speaks(directory)
    return found_model(directory, config, plugins.tool_formats)


def whose_weights(model_dir: Path) -> str:
    """The step of a run whose weights these are, and their success; empty for any other model."""
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
    """Whether `path` is in a directory of runs, so that `runs/nope` is not taken for an id of the hub."""
    default = path.parent == Path(RunSection().dir)
    return default or any(path.parent.glob("*/config.toml"))


def _is_checkpoint(path: Path) -> bool:
    """Whether `path` is a directory in a run's checkpoints, or named like a checkpoint, and is not a model."""
    is_named = path.parent.name == "checkpoints" or step_of(path) is not None
    return is_named and path.is_dir() and not (path / "config.json").is_file()


def _is_newer(checkpoint: Path, export: Path) -> bool:
    """Whether the run went on after it wrote `export`, or never wrote it."""
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
    trainer = trainer_of(checkpoint)
    with (checkpoint / ".export.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (directory / "config.json").is_file():
            return directory  # another process made it meanwhile
        export_checkpoint(trainer, checkpoint, directory)
    return directory


def export_checkpoint(trainer: Trainer, checkpoint: Path, directory: Path) -> None:
    """Write the weights of `checkpoint` as a model; ConfigError if they cannot be read or written."""
    try:
        trainer.export_checkpoint(checkpoint, directory)
    except ArealError as exc:
        raise ConfigError(f"the weights of {checkpoint} cannot be exported ({exc})") from exc


def trainer_of(checkpoint: Path, *, dtype: str | None = None) -> Trainer:
    """The trainer of the run that wrote `checkpoint`, not started; it exports as `dtype`."""
    run = RunDir(checkpoint.absolute().parent.parent)
    if not run.config.is_file():
        raise ConfigError(
            f"{checkpoint} is a checkpoint without its run, which knows the model that was trained: "
            "put it back into the run's checkpoints/"
        )
    config = load_config(file=run.config)
    plugins = _plugins_of_run(config)
    if config.trainer.lora.rank:
        model_dir = find_base(run, config)
    else:
        is_kept = run.model.is_dir()
        model_dir = run.model if is_kept else find_model(config.init_from or config.model)
    return make_trainer(
        config,
        model_dir,
        plugins=plugins,
        preset=find_preset(config, plugins),
        log_dir=run.logs,
        say=logger.info,
        only_exports=True,
        dtype=dtype,
    )


def _plugins_of_run(config: Config) -> Plugins:
    """The plugins of a run that was begun before. The agent's file may bring its trainer."""
    plugins = load_plugins_of(config)
    if config.trainer.name not in plugins.trainers and config.agent:
        load_program(config, plugins=plugins)
    return plugins


def keep_description(model_dir: Path, run_dir: RunDir) -> None:
    """Copy the model without its weights into the run. A checkpoint needs these files to become a model."""
    if run_dir.model.is_dir():
        return
    with whole_directory(run_dir.model) as partial:
        copy_all_but_weights(model_dir, partial)
        description = {**read_config(partial), "dtype": stored_dtype(model_dir)}
        write_json(partial / "config.json", description)
