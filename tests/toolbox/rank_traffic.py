"""The bytes that a rank sends to the others in an update: formulas, and a count that tests the formulas.

If n ranks gather a tensor, or sum its parts, each sends (n - 1) / n of it. If all of them get the sum, each sends
twice as much. Every part of the model is gathered before its forward pass and again before its backward pass.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from areal_sdk.config import TrainerSection
from areal_sdk.shapes import ModelShape
from areal_sdk.telemetry.token_log import GATHERED

FLOAT, HALF = 4, 2
"""Bytes of an element."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes that one rank sends."""

    gathered: float = 0.0
    """Weights, in the type in which they are computed."""
    scattered: float = 0.0
    """Gradients: each rank gets the sum of its own rows."""
    reduced: float = 0.0
    """Gradients that copies of the model sum, the record of the step's tokens, and the few numbers of the metrics."""


def predict_sent(
    model: ModelShape,
    settings: TrainerSection,
    *,
    num_microbatches: int,
    num_measured: int = 2,
    num_recorded: int = 0,
) -> Sent:
    """The bytes of an update in which all weights are trained, with `num_microbatches` on each rank.

    `num_measured` is the number of forward passes that measure the update (`trainer.trust_region`), `num_recorded` the number
    of tokens that the step records (`run.keep_tokens`).

    The exchanges of `sequence_ranks` come on top.
    """
    ranks, copies = settings.ranks // settings.replicas, settings.replicas
    layers, tables = model.layers * model.layer, 1 if model.is_tied else 2
    is_half = settings.precision == "bfloat16"
    in_half = layers if is_half else 0
    if is_half and settings.head_precision == "bfloat16" and not model.is_tied:
        in_half += model.table
    in_float = layers + tables * model.table + model.hidden - in_half
    gradients = FLOAT * model.parameters
    num_sums = 1 if settings.defer_gradient_sync else num_microbatches
    num_gathers = 2 * num_microbatches + num_measured
    return Sent(
        gathered=num_gathers * (HALF * in_half + FLOAT * in_float) * _share(ranks),
        scattered=num_sums * gradients * _share(ranks),
        reduced=2 * gradients / ranks * _share(copies)
        + 2 * FLOAT * len(GATHERED) * num_recorded * _share(settings.ranks),
    )


def _share(ranks: int) -> float:
    return (ranks - 1) / ranks


_KINDS = {
    "c10d::_allgather_base_": "gathered",
    "c10d::_reduce_scatter_base_": "scattered",
    "c10d::allreduce_": "reduced",
}


class CountedTraffic(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the collectives of this thread while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: dict[str, int] = defaultdict(int)
        self._sent: dict[str, float] = defaultdict(float)

    @property
    def sent(self) -> Sent:
        return Sent(**self._sent)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self._count(_KINDS[func._schema.name], args)
        return func(*args, **(kwargs or {}))

    def _count(self, kind: str, args: Any) -> None:
        found = [x for a in args for x in (a if isinstance(a, list) else [a])]
        largest = max((x for x in found if isinstance(x, Tensor)), key=torch.numel)
        # The first object is the group; what follows names the operation.
        group = next(x for x in found if isinstance(x, torch.ScriptObject))
        share = _share(dist.ProcessGroup.unbox(group).size())
        self.calls[kind] += 1
        self._sent[kind] += largest.nbytes * share * (2 if kind == "reduced" else 1)
