"""The split of a model over the ranks, and the types in which its parts compute (FSDP2).

A part's weights are whole on a rank only while the part computes. Layers are gathered in the type that they compute
in: autocast, which casts for a single rank, would keep its copies of all layers until the backward pass. The
embedding and its gradient stay in float32, because a frequent token adds up many terms. The stream between the layers
stays in float32 too.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol, TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    MixedPrecisionPolicy,
    fully_shard,
    register_fsdp_forward_method,
)

from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.kernels.head import OutputLayer

T = TypeVar("T")

SPLIT = "split"
"""The dimension of the mesh of ranks over which parameters are split."""


class Layered(Protocol):
    """A model that is sharded layer by layer."""

    @property
    def layers(self) -> nn.ModuleList: ...

    @property
    def ends(self) -> Sequence[nn.Module]:
        """The modules with weights before and after the layers. Each layer and each of these is gathered by itself; the
        rest of the model is gathered for the whole pass."""
        ...


def shard(model: Layered, ranks: Ranks, settings: TrainerSection) -> None:
    """Split parameters, gradients and optimiser state over the ranks; a single rank keeps them whole."""
    if not ranks.is_distributed:
        return
    assert isinstance(model, nn.Module)
    mesh = _mesh(ranks, settings.replicas)
    exact = MixedPrecisionPolicy(cast_forward_inputs=False)
    computed = torch.bfloat16 if settings.precision == "bfloat16" else None
    rounded = MixedPrecisionPolicy(
        param_dtype=computed, reduce_dtype=torch.float32, cast_forward_inputs=False
    )

    def split(part: nn.Module, policy: MixedPrecisionPolicy) -> None:
        # The root too: what is left whole after a pass without a gradient would be saved in its place.
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=True)

    for layer in model.layers:
        split(layer, rounded)
    for end in model.ends:
        is_rounded = isinstance(end, OutputLayer) and not end.is_exact
        split(end, rounded if is_rounded else exact)
        if isinstance(end, OutputLayer):
            register_fsdp_forward_method(end, OutputLayer.token_logprobs.__name__)
    split(model, exact)


def _mesh(ranks: Ranks, replicas: int) -> DeviceMesh:
    """The mesh of ranks: neighbouring ranks split a copy of the model, and ranks at the same place in their copies
    hold the same part."""
    if replicas == 1:
        return init_device_mesh(ranks.device.type, (ranks.size,), mesh_dim_names=(SPLIT,))
    return init_device_mesh(
        ranks.device.type, (replicas, ranks.size // replicas), mesh_dim_names=("copy", SPLIT)
    )


def summed_at_the_end(
    model: nn.Module, batches: Sequence[T], settings: TrainerSection
) -> Iterator[T]:
    """The micro-batches of one update. Each goes forward and backward before the next is asked for.

    The ranks sum their gradients only after the last micro-batch, if they may (`defer_gradient_sync`).
    """
    for number, batch in enumerate(batches, start=1):
        if isinstance(model, FSDPModule):
            is_due = number == len(batches) or not settings.defer_gradient_sync
            model.set_requires_gradient_sync(is_due)
        yield batch


@contextmanager
def frozen_ends_kept_whole(model: Layered) -> Iterator[None]:
    """Gather the embedding and the output layer, if they are frozen, once for all passes in this block.

    This is for passes without a gradient, which keep no activations and so leave the rank room for a whole table.
    """
    assert isinstance(model, nn.Module)
    parts = [part for part in (model, *model.ends) if isinstance(part, FSDPModule)]
    in_layers = {id(parameter) for layer in model.layers for parameter in layer.parameters()}
    kept = [
        part
        for part in parts
        if not any(p.requires_grad for p in part.parameters() if id(p) not in in_layers)
    ]
    for part in kept:
        part.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for part in kept:
            part.set_reshard_after_forward(True, recurse=False)
            part.reshard()
