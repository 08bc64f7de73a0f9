"""Activation checkpointing: layers that compute their activations again in the backward pass and do not keep them."""

from functools import partial
from typing import Literal

from torch.utils.checkpoint import checkpoint

from areal_sdk.fsdp.sharding import Layered

Recomputed = Literal["none", "half", "full"]

_STRIDE = {"half": 2, "full": 1}


def recompute_activations(model: Layered, which: Recomputed) -> None:
    """Have all layers of `model`, or every other one, keep their input alone.

    The second computation gives the same bits as the first, because random numbers are drawn alike. A pass without a
    gradient keeps nothing in any case.
    """
    if which == "none":
        return
    for layer in model.layers[:: _STRIDE[which]]:
        # Not as a wrapper around the layer, which would change the names of its parameters.
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
