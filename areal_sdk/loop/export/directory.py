"""The files of an export: weights in one dtype, the description of the model, and its card. The dtype is that of the
evaluated weights, so that the run's figures hold for the files. A narrower dtype loses a part of what was learnt; the
card says how much."""

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from areal_sdk.errors import CheckpointError, ConfigError
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.gateway.tokens.template import store_plain_tools
from areal_sdk.loop.export.card import Exported, Figures, base_of, lineage, model_card
from areal_sdk.loop.export.choice import Choice
from areal_sdk.loop.learning.state import step_of
from areal_sdk.loop.plan.models import export_checkpoint, first_weights, trainer_of
from areal_sdk.loop.shutdown import sigterm_as_ctrl_c
from areal_sdk.models.checkpoint import (
    ADAPTER,
    DTYPES,
    copy_all_but_weights,
    stored_weights,
    write_json,
    write_safetensors,
)
from areal_sdk.models.families import read_config, stored_dtype
from areal_sdk.models.rounding import Rounding, rounding_of
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.directories import OUT_OF_SPACE, whole_directory
from areal_sdk.telemetry.run_dir import MEASURED_FILE


def write_export(
    choice: Choice,
    directory: Path,
    *,
    dtype: str | None = None,
    adapter: bool = False,
    measure: Callable[[Path], Figures] = lambda _: Figures(),
) -> Exported:
    """Write the weights of `choice` to `directory`, which appears whole or not at all.

    `dtype` is by default the dtype that the run evaluated. `adapter` writes the adapter alone, as peft saves it, in
    place of the merged model. `measure` is called with the directory of the finished files, before the card is written.
    """
    check_empty(directory)
    if adapter and not choice.run.read_config().get("trainer", {}).get("lora", {}).get("rank"):
        raise ConfigError(
            f"{choice.run.path} trained all weights and has no adapter: leave --adapter out"
        )
    wanted = "float32" if adapter else dtype or evaluated_dtype(choice)
    try:
        with sigterm_as_ctrl_c(), _scratch_beside(directory) as scratch:
            weights = choice.weights
            if step_of(weights) is not None:  # its optimiser's weights are float32
                weights = scratch / "model"
                trainer = trainer_of(choice.weights, dtype="float32")
                export_checkpoint(trainer, choice.weights, weights)
            with whole_directory(directory) as partial:
                copy_all_but_weights(weights, partial)
                (partial / MEASURED_FILE).unlink(missing_ok=True)  # the card has its figures
                num_vanished = 0
                if adapter:
                    _copy_adapter(weights / ADAPTER, partial, base=base_of(choice.run))
                else:
                    num_vanished = _write_weights(weights, partial, dtype=wanted)
                _write_template(partial)
                rounding, is_rounded = _rounding(choice.run, weights, wanted)
                figures = measure(partial)
                exported = Exported(wanted, adapter, rounding, is_rounded, num_vanished, figures)
                card = model_card(choice, exported, title=directory.name)
                (partial / "README.md").write_text(card, encoding="utf-8")
    except (OSError, CheckpointError) as exc:
        raise _cannot_write(directory, exc) from exc
    return exported


@contextmanager
def _scratch_beside(directory: Path) -> Iterator[Path]:
    """A temporary directory on the disk of the export."""
    parent = directory.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".export-", dir=parent) as scratch:
        yield Path(scratch)


def _cannot_write(directory: Path, error: Exception) -> Exception:
    """The ConfigError of a place where nothing can be written; else `error` itself."""
    cause = error if isinstance(error, OSError) else error.__cause__
    if not isinstance(cause, OSError):
        return error
    if cause.errno in OUT_OF_SPACE:
        why = f"no space is left on its disk ({cause.strerror}): free some, or choose another disk"
    else:
        why = f"{cause.strerror or cause}: choose a place where you may write"
    return ConfigError(f"{directory} cannot be written: {why} (--to DIRECTORY)")


def evaluated_dtype(choice: Choice) -> str:
    """The dtype of the weights that the run's engine sampled with."""
    if step_of(choice.weights) is None:
        return stored_dtype(choice.weights)
    # As it was written: another machine's default may be another.
    engine = choice.run.read_config().get("engine", {}).get("dtype", "auto")
    return stored_dtype(choice.run.model) if engine == "auto" else str(engine)


def check_empty(directory: Path) -> None:
    """Raise ConfigError if an export would replace something."""
    if directory.is_dir() and not any(directory.iterdir()):
        return
    if directory.exists():
        raise ConfigError(f"{directory} is not empty: choose another directory, or remove it")


def _rounding(run: RunDir, kept: Path, dtype: str) -> tuple[Rounding | None, bool]:
    """The effect of rounding on the weights in `kept`, and whether they are rounded. Float32 weights get the effect
    that bfloat16 would have."""
    if stored_dtype(kept) != "float32":
        known = Rounding.read(kept)  # the trainer had the whole weights
        if known is not None and dtype == "float16" != known.dtype:
            # Of float32 nothing is left to compare. What bfloat16 holds, float16 holds too unless it is tiny.
            known = replace(known, dtype=f"{known.dtype}, as the run kept them, and then {dtype}")
        return known, known is not None
    first = [found for r in reversed(lineage(run)) if (found := first_weights(r)) is not None]
    narrow = "bfloat16" if dtype == "float32" else dtype
    lost = rounding_of(kept, dtype=narrow, began_with=first[0]) if first else None
    return lost, lost is not None and narrow == dtype


def _write_weights(model_dir: Path, directory: Path, *, dtype: str) -> int:
    """Write the weights as `dtype`. Returns the number of weights that `dtype` turns into 0."""
    num_vanished = 0
    if stored_dtype(model_dir) == dtype:
        for path in model_dir.glob("*.safetensors"):
            shutil.copyfile(path, directory / path.name)
    else:
        path = directory / "model.safetensors"
        num_vanished = write_safetensors(path, stored_weights(model_dir), dtype=DTYPES[dtype])
    config = {**read_config(directory), "dtype": dtype}
    config.pop("torch_dtype", None)
    write_json(directory / "config.json", config)
    return num_vanished


def _write_template(directory: Path) -> None:
    """Have the chat template write tools as the gateway does, if the template has no place for them."""
    if Renderer.load(directory).weaves_tools:
        store_plain_tools(directory)


def _copy_adapter(adapter: Path, directory: Path, *, base: str) -> None:
    """Copy the adapter without a config.json, which would make transformers take it for a whole model."""
    (directory / "config.json").unlink()
    (directory / "generation_config.json").unlink(missing_ok=True)
    shutil.copytree(adapter, directory, copy_function=shutil.copyfile, dirs_exist_ok=True)
    path = directory / "adapter_config.json"
    config: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    write_json(path, {**config, "base_model_name_or_path": base})
