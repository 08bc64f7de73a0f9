"""Exports: the weights of a trainer, or of a checkpoint, as a model that transformers loads.

python -m areal_sdk.fsdp.checkpoint.export CHECKPOINT DIRECTORY MODEL DTYPE
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load

from areal_sdk.config import LoraSection, TrainerSection
from areal_sdk.fsdp.adapter import merged_files, write_adapter
from areal_sdk.fsdp.checkpoint.saving import MODEL, alone_is_fine, check_adapter, read_state
from areal_sdk.fsdp.collectives import full
from areal_sdk.fsdp.publish import dtype_name, sample_of
from areal_sdk.fsdp.reward_model import HEAD, as_classifier
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.models.checkpoint import ADAPTER, Float32, copy_all_but_weights
from areal_sdk.models.experts import stored_parts
from areal_sdk.models.families import read_config
from areal_sdk.models.rounding import Beginning, Rounding
from areal_sdk.telemetry.checksums import check_files
from areal_sdk.telemetry.directories import whole_directory


def export_model(trainer: RankTrainer, directory: Path, *, dtype: torch.dtype) -> None:
    """Write a directory that transformers loads: safetensors, config, tokenizer. A collective.

    If an adapter is trained, the directory has the merged model, and beside it the adapter alone.
    """
    weights, samples = whole_weights(trainer, dtype=dtype)
    lora = trainer.spec.trainer.lora
    adapter = {
        name: full(parameter.detach()).to("cpu")
        for name, parameter in trainer.policy.named_weights().items()
        if lora.rank
    }

    def write() -> None:
        model_dir = trainer.spec.model_dir
        rounding = (
            Beginning(model_dir).rounding(samples, dtype=dtype_name(dtype)) if samples else None
        )
        _write_export(model_dir, directory, weights, lora, adapter, rounding=rounding)

    trainer.ranks.on_first(write)


def export_checkpoint(
    checkpoint: Path, directory: Path, *, model_dir: Path, dtype: torch.dtype
) -> None:
    """Write the weights of `checkpoint` as `export_model` does, without ranks or a trainer. One tensor is read at a
    time, so the memory is that of the exported model. The weights of an adapter are merged into those of `model_dir`.
    """
    check_files(checkpoint)
    saved = read_state(checkpoint).get("adapter")
    if saved is None:
        family = str(read_config(model_dir).get("model_type"))
        weights = {
            part.name: tensor[part.place].to(dtype).contiguous()
            for name, tensor in _saved_weights(checkpoint)
            for part in stored_parts(family, name, tensor.shape)
        }
        _write_export(model_dir, directory, weights)
        return
    lora = LoraSection(**{key: value for key, value in saved.items() if key != "base"})
    check_adapter(checkpoint, saved, TrainerSpec(model_dir, trainer=TrainerSection(lora=lora)))
    adapter = dict(_saved_weights(checkpoint))
    weights = {
        name: tensor.to(dtype).contiguous()
        for weight in merged_files(model_dir, lora, adapter)
        for name, tensor in weight.merged()
    }
    _write_export(model_dir, directory, weights, lora, adapter)


def whole_weights(
    trainer: RankTrainer, *, dtype: torch.dtype
) -> tuple[dict[str, Tensor], dict[str, Float32]]:
    """The model in host memory, and a sample of weights that shows the effect of rounding to `dtype`; both on rank 0
    alone. A collective."""
    weights: dict[str, Tensor] = {}
    samples: dict[str, Float32] = {}
    for weight in trainer.policy.served_weights():
        whole = weight.gathered()
        if trainer.ranks.rank == 0:
            for name, tensor in whole.merged():
                weights[name] = tensor.to("cpu", dtype).contiguous()
                if dtype is not torch.float32:
                    samples[name] = sample_of(tensor)
    return weights, samples


def _saved_weights(checkpoint: Path) -> Iterator[tuple[str, Tensor]]:
    """The trained weights in a checkpoint, one after the other."""
    saved = FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    for name, stored in saved.items():
        if name.startswith(MODEL):
            assert isinstance(stored, TensorStorageMetadata)
            tensor = {name: torch.empty(stored.size, dtype=stored.properties.dtype)}
            with alone_is_fine():
                load(tensor, checkpoint_id=checkpoint, no_dist=True)
            yield name.removeprefix(MODEL), tensor[name]


def _write_export(
    model_dir: Path,
    directory: Path,
    weights: Mapping[str, Tensor],
    lora: LoraSection | None = None,
    adapter: Mapping[str, Tensor] | None = None,
    *,
    rounding: Rounding | None = None,
) -> None:
    dtype = next(iter(weights.values())).dtype
    with whole_directory(directory) as partial:
        copy_all_but_weights(model_dir, partial)
        config = json.loads((partial / "config.json").read_text(encoding="utf-8"))
        config.pop("torch_dtype", None)
        config["dtype"] = dtype_name(dtype)
        if HEAD in weights:
            config = as_classifier(config)
        (partial / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
        notes = {} if rounding is None else rounding.notes()
        save_file(dict(weights), partial / "model.safetensors", {"format": "pt", **notes})
        if lora is not None and adapter:
            write_adapter(partial / ADAPTER, adapter, lora, model_dir)
        mode = (partial / "config.json").stat().st_mode
        for path in partial.rglob("*.safetensors"):
            path.chmod(mode)  # `save_file` lets nobody else read it


def main(arguments: Sequence[str]) -> None:
    """Export a checkpoint without its trainer."""
    checkpoint, directory, model_dir = map(Path, arguments[:3])
    dtype = getattr(torch, arguments[3])
    export_checkpoint(checkpoint, directory, model_dir=model_dir, dtype=dtype)


if __name__ == "__main__":
    main(sys.argv[1:])
