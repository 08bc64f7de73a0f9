"""Checkpoints of weights and optimiser (DCP: any number of ranks), and exports (transformers).

step-000020/
    .metadata, __0_0.distcp, ...     weights, moments, generators; sharded as the ranks were
    trainer.json                     counters, baselines, and what the caller added
    export/                          the weights as a model, where somebody asked for them
"""

import json
import shutil
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from areal_sdk.fsdp.collectives import full
from areal_sdk.fsdp.directories import STATE_FILE
from areal_sdk.fsdp.reward_model import HEAD, as_classifier
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.models.checkpoint import copy_all_but_weights
from areal_sdk.telemetry.directories import (
    CheckpointError,
    begin,
    cannot_write,
    commit,
    partial_of,
    whole_directory,
)

JSON = Any

FORMAT = 1

_MODEL = "model."


def save_checkpoint(trainer: RankTrainer, directory: Path, extra: Mapping[str, JSON]) -> None:
    """Write all that `load_checkpoint` needs to go on bit by bit. A collective.

    Where one rank fails, all raise, and what was at `directory` before is still there.
    """
    ranks = trainer.ranks
    partial = partial_of(directory)
    state = {
        "format": FORMAT,
        "phase": trainer.phase,
        "num_updates": trainer.num_updates,
        "critic_updates": None if trainer.critic is None else trainer.critic.num_updates,
        "baselines": trainer.baselines,
        "extra": extra,
    }
    try:
        ranks.on_first(lambda: begin(directory))
        _write(trainer, partial, directory)
        ranks.on_first(lambda: _finish(directory, state))
    finally:
        if ranks.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)


def _finish(directory: Path, state: Mapping[str, JSON]) -> None:
    try:
        (partial_of(directory) / STATE_FILE).write_text(json.dumps(state, indent=1))
    except OSError as exc:
        raise cannot_write(directory, exc) from exc
    commit(directory)


def load_checkpoint(trainer: RankTrainer, directory: Path) -> Mapping[str, JSON]:
    """Bring `trainer` to where it was; returns the saved `extra`. A collective."""
    try:
        state = json.loads((directory / STATE_FILE).read_text())
    except FileNotFoundError:
        raise CheckpointError(f"{directory} is not a checkpoint: it has no {STATE_FILE}") from None
    if state["format"] != FORMAT:
        raise CheckpointError(
            f"{directory} has format {state['format']}, this version reads {FORMAT}"
        )
    trainer.phase = state["phase"]
    trainer.num_updates = state["num_updates"]
    trainer.baselines = state["baselines"]
    if trainer.critic is not None:  # none was saved where another algorithm was trained: it begins
        trainer.critic.num_updates = state.get("critic_updates") or 0
    has_critic = state.get("critic_updates") is not None
    tensors = _tensors(trainer, with_critic=has_critic, allocate=True)
    own_rng = f"rng.{trainer.ranks.rank}"
    saved = FileSystemReader(directory).read_metadata().state_dict_metadata
    rng = {own_rng: torch.get_rng_state()} if own_rng in saved else {}  # a rank may be new
    try:
        with _alone_is_fine():
            load(tensors | rng, checkpoint_id=directory, no_dist=not trainer.ranks.is_distributed)
    except CheckpointException as exc:
        raise CheckpointError(f"{directory} cannot be read: {_first_failure(exc)}") from exc
    if rng:
        torch.set_rng_state(rng[own_rng])
    extra: Mapping[str, JSON] = state["extra"]
    return extra


def export_model(trainer: RankTrainer, directory: Path, *, dtype: torch.dtype) -> None:
    """A directory that transformers loads: safetensors, config, tokenizer. A collective."""
    weights = whole_weights(trainer, dtype=dtype)
    trainer.ranks.on_first(lambda: _write_export(trainer.spec.model_dir, directory, weights))


def export_checkpoint(
    checkpoint: Path, directory: Path, *, model_dir: Path, dtype: torch.dtype
) -> None:
    """Write the weights of `checkpoint` as `export_model` does; takes no ranks and no trainer.

    One tensor is read at a time: in memory the model is as large as it is exported.
    """
    saved = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    weights: dict[str, Tensor] = {}
    for name, stored in saved.items():
        if not name.startswith(_MODEL):
            continue
        assert isinstance(stored, TensorStorageMetadata)
        tensor = {name: torch.empty(stored.size, dtype=stored.properties.dtype)}
        with _alone_is_fine():
            load(tensor, checkpoint_id=checkpoint, no_dist=True)
        weights[name.removeprefix(_MODEL)] = tensor[name].to(dtype).contiguous()
    _write_export(model_dir, directory, weights)


def whole_weights(trainer: RankTrainer, *, dtype: torch.dtype) -> dict[str, Tensor]:
    """The model in host memory, on rank 0; elsewhere nothing stays. A collective."""
    weights: dict[str, Tensor] = {}
    for name, parameter in trainer.policy.named_weights().items():
        whole = full(parameter.detach())
        if trainer.ranks.rank == 0:
            weights[name] = whole.to("cpu", dtype).contiguous()
    return weights


def _write_export(model_dir: Path, directory: Path, weights: Mapping[str, Tensor]) -> None:
    dtype = next(iter(weights.values())).dtype
    with whole_directory(directory) as partial:
        copy_all_but_weights(model_dir, partial)
        config = json.loads((partial / "config.json").read_text())
        config.pop("torch_dtype", None)
        config["dtype"] = str(dtype).removeprefix("torch.")
        if HEAD in weights:
            config = as_classifier(config)
        (partial / "config.json").write_text(json.dumps(config, indent=2))
        path = partial / "model.safetensors"
        save_file(dict(weights), path, metadata={"format": "pt"})
        path.chmod((partial / "config.json").stat().st_mode)  # `save_file` lets nobody else read it


def _write(trainer: RankTrainer, partial: Path, directory: Path) -> None:
    tensors = _tensors(trainer)
    rng = {f"rng.{trainer.ranks.rank}": torch.get_rng_state()}
    try:
        with _alone_is_fine():
            save(tensors | rng, checkpoint_id=partial, no_dist=not trainer.ranks.is_distributed)
    except CheckpointException as exc:
        failure = _first_failure(exc)
        if isinstance(failure, OSError):
            raise cannot_write(directory, failure) from exc
        raise


@contextmanager
def _alone_is_fine() -> Iterator[None]:
    """DCP warns about a single process although it was told that there is one."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _first_failure(error: CheckpointException) -> BaseException:
    """What explains it: torch's writer hides that the disk is full behind an error of its own."""
    failures = list(error.failures.values())
    failure: BaseException = failures[0][0] if failures else error
    behind: BaseException | None = failure
    while behind is not None and not isinstance(behind, OSError):
        behind = behind.__cause__ or behind.__context__
    return behind or failure


def _tensors(
    trainer: RankTrainer, *, with_critic: bool = True, allocate: bool = False
) -> dict[str, Tensor]:
    """Weights and optimiser moments under stable names; `allocate` makes moments to load into."""
    tensors = _learned(
        trainer.policy.named_weights(),
        trainer.optimizer,
        names=(_MODEL, "optimizer."),
        with_moments=trainer.num_updates > 0,
        allocate=allocate,
    )
    if trainer.critic is not None and with_critic:
        tensors |= _learned(
            trainer.critic.model.named_weights(),
            trainer.critic.optimizer,
            names=("critic.", "critic_optimizer."),
            with_moments=trainer.critic.num_updates > 0,
            allocate=allocate,
        )
    return tensors


def _learned(
    weights: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    *,
    names: tuple[str, str],
    with_moments: bool,
    allocate: bool,
) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, parameter in weights.items():
        tensors[f"{names[0]}{name}"] = parameter.detach()
        if not with_moments:
            continue
        if allocate:
            optimizer.state[parameter] = {
                "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                "exp_avg": torch.zeros_like(parameter.detach()),
                "exp_avg_sq": torch.zeros_like(parameter.detach()),
            }
        for key, value in optimizer.state[parameter].items():
            tensors[f"{names[1]}{name}.{key}"] = value
    if allocate and not with_moments:
        optimizer.state.clear()
    return tensors


def main(arguments: Sequence[str]) -> None:
    """`python -m areal_sdk.fsdp.checkpoint CHECKPOINT DIRECTORY MODEL DTYPE`: export it."""
    checkpoint, directory, model_dir = map(Path, arguments[:3])
    dtype = getattr(torch, arguments[3])
    export_checkpoint(checkpoint, directory, model_dir=model_dir, dtype=dtype)


if __name__ == "__main__":
    main(sys.argv[1:])


__all__ = ["export_checkpoint", "export_model", "load_checkpoint", "save_checkpoint"]
