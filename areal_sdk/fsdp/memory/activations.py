"""Activation checkpointing, and the choice of it: layers compute their activations again in the backward pass and do
not keep them."""

import os
import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch.utils.checkpoint import checkpoint

from areal_sdk.errors import MemoryShortError
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.memory.fitting import RESERVE, Fit
from areal_sdk.fsdp.sharding import Layered
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.process.memory import is_memory_short, machine_mb
from areal_sdk.process.spec import SHARE_VARIABLE

Recomputed = Literal["auto", "none", "half", "full"]

_STRIDE = {"half": 2, "full": 1}


def recompute_activations(model: Layered, which: Recomputed) -> None:
    """Have all layers of `model`, every other layer, or none keep only their input. May be called again.

    The second computation gives the same bits as the first, because random numbers are drawn alike. A pass without a
    gradient keeps nothing in any case.
    """
    for layer in model.layers:
        vars(layer).pop("forward", None)
    for layer in model.layers[:: _STRIDE[which]] if which in _STRIDE else ():
        # Not as a wrapper around the layer, which would change the names of its parameters.
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


class StepMemory:
    """The memory of a rank's steps: chooses activation checkpointing, and says what to lower if memory is short."""

    def __init__(self, spec: TrainerSpec, ranks: Ranks) -> None:
        self._settings = spec.trainer
        self._device = ranks.device
        self._who = f"rank {ranks.rank} on {ranks.device}"
        # The smallest rank decides for all: neighbours that share a row must compute alike.
        room = -ranks.max({"room": -_room(ranks.device)})["room"]
        self._fit = Fit.of(spec.model_dir, spec.trainer, int(room)) if room else None
        self._longest = 0
        self._recomputes: str = spec.trainer.activation_checkpointing

    def prepare(self, models: Sequence[Layered], num_tokens: int = 0) -> list[str]:
        """Have the layers of `models` recompute what a step with a row of `num_tokens` has no room for. Returns lines
        for the user."""
        num_tokens = max(num_tokens, self._settings.tokens_per_microbatch)
        if self._fit is None or num_tokens <= self._longest:
            return []
        self._longest = num_tokens
        chosen = self._fit.chosen(num_tokens).activation_checkpointing
        lines = []
        if chosen not in (self._recomputes, "none"):
            for model in models:
                recompute_activations(model, chosen)
            lines.append(
                f'trainer.activation_checkpointing is "{chosen}" from now on: a step with {num_tokens:,} tokens at once '
                f"would take {self._fit.needs(num_tokens).total / 1e9:.1f} GB without it (predicted), and a rank has "
                f"{self._fit.room / 1e9:.1f} GB; set it to choose yourself"
            )
        self._recomputes = chosen
        return [*lines, doubt] if (doubt := self._fit.doubt(num_tokens)) else lines

    @contextmanager
    def named(self, what: str) -> Iterator[None]:
        """Raise MemoryShortError, which says what to lower and how far, if an allocation fails within this block."""
        try:
            yield
        except Exception as exc:
            if not is_memory_short(exc):
                raise
            raise MemoryShortError(self._explain(what, exc)) from exc

    def _explain(self, what: str, error: Exception) -> str:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        if self._device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._device)
        said = str(error).strip().splitlines() or [type(error).__name__]
        text = f"{self._who} ran out of memory in {what!r}, with {peak / 1e9:.2f} GB taken at most"
        if self._fit is not None:
            num_tokens = self._longest or self._settings.tokens_per_microbatch
            settings = self._fit.chosen(num_tokens)
            needed = self._fit.needs(num_tokens, settings).total
            room = int((1 - RESERVE) * min(peak, needed))
            fit = replace(self._fit, settings=settings, room=room)
            text += f" (predicted: {needed / 1e9:.2f}): {fit.ways_out(num_tokens)}"
        return f"{text}. torch says: {said[0][:300]}"


def _room(device: torch.device) -> float:
    """Bytes that a rank may take of its device. Ranks on the CPU share the memory of their machine."""
    if device.type == "cuda":
        total = float(torch.cuda.get_device_properties(device).total_memory)
    else:
        total = float((machine_mb() or 0) << 20) / int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    return total * min(1 - RESERVE, float(os.environ.get(SHARE_VARIABLE, 1)))
