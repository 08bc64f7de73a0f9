"""The loading of a model onto the ranks: each reads the rows that it keeps, and nothing larger.

The model is made without memory, split, and then filled tensor by tensor from the files. So no rank and no machine
ever holds a whole model.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard

from areal_sdk.errors import ConfigError
from areal_sdk.fsdp.adapter import served_weights
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.memory.activations import recompute_activations
from areal_sdk.fsdp.policy import Policy, load_policy
from areal_sdk.fsdp.sharding import SPLIT, Layered, shard
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.models.checkpoint import StoredTensor, stored_tensors
from areal_sdk.models.experts import StoredPart

PIECE_BYTES = 2**24
"""Bytes that are read from a file at once."""

M = TypeVar("M", bound=Layered)


def load_trained(spec: TrainerSpec, ranks: Ranks, wrap: Callable[[Policy], M]) -> M:
    """The policy of the run's model as `wrap` makes it, on its device and split over the ranks."""
    settings = spec.trainer
    is_split = ranks.is_distributed
    policy = load_policy(
        spec.model_dir,
        exact_head=settings.head_precision == "float32",
        lora=settings.lora,
        seed=spec.run.seed,
        precision=settings.precision,
        is_filled=not is_split,
        sequence=ranks.sequence,
    )
    model = wrap(policy)
    assert isinstance(model, nn.Module)
    recompute_activations(model, settings.activation_checkpointing)
    shard(model, ranks, settings)
    if is_split:
        fill(model, policy, spec.model_dir, ranks.device)
    return model.to(ranks.device)


def as_it_is(policy: Policy) -> Policy:
    return policy


@torch.no_grad()
def fill(model: nn.Module, policy: Policy, model_dir: Path, device: torch.device) -> None:
    """Give `model`, made of parts of `policy`, its memory and the weights of `model_dir`."""
    _allocate(model, policy, device)
    stored = stored_tensors(model_dir)
    for weight in served_weights(policy.model):
        if not weight.base.is_meta:  # a part of the policy that the model has no use for
            for part in weight.parts:
                _read(stored[part.name], weight.base, part, model_dir)


def _allocate(model: nn.Module, policy: Policy, device: torch.device) -> None:
    def allocated(tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)

    derived = [m for m in model.modules() if any(b.is_meta for b in m.buffers(recurse=False))]
    model._apply(allocated)  # type: ignore[no-untyped-call]
    for module in derived:  # rotary frequencies, which no file holds
        policy.model._init_weights(module)


def _read(stored: StoredTensor, parameter: Tensor, part: StoredPart, model_dir: Path) -> None:
    """Copy this rank's rows of a part of a parameter, a few rows at a time."""
    if stored.shape != part.shape:
        raise ConfigError(
            f"{model_dir}: {part.name} has shape {stored.shape} in its file, and config.json asks for "
            f"{part.shape}: save the whole model with save_pretrained"
        )
    local, first = _own_rows(parameter)
    if part.place:
        expert, *rows_of_part = part.place
        assert isinstance(expert, int)
        if not first <= expert < first + len(local):
            return  # another rank keeps it
        local, first = local[(expert - first, *rows_of_part)], 0
    step = max(1, PIECE_BYTES // stored.row_bytes)
    for start in range(0, len(local), step):
        rows = local[start : start + step]
        rows.copy_(torch.from_numpy(stored.rows(first + start, first + start + len(rows))))


def _own_rows(parameter: Tensor) -> tuple[Tensor, int]:
    """This rank's part of a parameter, and the number of its first row."""
    if not isinstance(parameter, DTensor):
        return parameter, 0
    mesh = parameter.device_mesh
    assert parameter.placements[-1] == Shard(0), "as `fully_shard` splits it"
    rows_of_rank = -(-len(parameter) // mesh.size(mesh.ndim - 1))
    return parameter.to_local(), mesh.get_local_rank(SPLIT) * rows_of_rank
