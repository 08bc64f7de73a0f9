"""Ranks that compute each row together, for sequences that are too long for one (Ulysses).

Each rank has a part of the row's tokens. Only attention looks at other tokens. Before attention the ranks
exchange tensors, so that each rank has all tokens for some of the heads. After attention they exchange
back. Each rank computes the logprobs of its own tokens, and then all ranks get all logprobs. So all ranks
compute the same loss. Each rank has its own tokens' share of the gradient, and FSDP adds the shares up.

Shapes: S ranks, N tokens of the row, n = ceil(N / S) of a rank, H heads, D head dimension; R nodes whose
logits are needed, T loss terms.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from areal_sdk.algorithms.batch import Batch


@dataclass(frozen=True, slots=True)
class Reading:
    """The values that a rank reads off its own part of a row."""

    nodes_R: Tensor
    """Offsets into the part."""
    temperatures_R: Tensor
    rows_T: Tensor
    targets_T: Tensor


@dataclass(frozen=True, slots=True)
class SequenceRanks:
    """This rank's place among the ranks that compute each row together. A lone rank computes the whole row."""

    rank: int = 0
    size: int = 1
    group: dist.ProcessGroup | None = None

    def part(self, values_N: Tensor) -> Tensor:
        """This rank's part of a row, padded with zeros if the row is too short."""
        if self.size == 1:
            return values_N
        count = -(-len(values_N) // self.size)
        part = values_N[self.rank * count : (self.rank + 1) * count]
        return torch.nn.functional.pad(part, (0, count - len(part)))

    def to_heads(self, states_HnD: Tensor, num_tokens: int) -> Tensor:
        """All tokens of this rank's heads, in place of all heads of its tokens."""
        if self.size == 1:
            return states_HnD
        num_heads, count, dim = states_HnD.shape
        exchanged = self._exchange(states_HnD.reshape(self.size, -1, count, dim))
        return exchanged.transpose(0, 1).reshape(num_heads // self.size, -1, dim)[:, :num_tokens]

    def to_tokens(self, states_HND: Tensor) -> Tensor:
        """All heads of this rank's tokens, in place of all tokens of its heads."""
        if self.size == 1:
            return states_HND
        num_heads, num_tokens, dim = states_HND.shape
        count = -(-num_tokens // self.size)
        filled = torch.nn.functional.pad(states_HND, (0, 0, 0, count * self.size - num_tokens))
        parts = filled.view(num_heads, self.size, count, dim).transpose(0, 1)
        return self._exchange(parts).reshape(-1, count, dim)

    def read(
        self,
        hidden_nH: Tensor,
        batch: Batch,
        values_of: Callable[[Tensor, Reading], Sequence[Tensor]],
    ) -> list[Tensor]:
        """The result of `values_of` for the terms of `batch`, each (T,). Every rank gets all of them."""
        if self.size == 1:
            reading = Reading(batch.nodes_R, batch.temperatures_R, batch.rows_T, batch.targets_T)
            return [*values_of(hidden_nH[batch.nodes_R], reading)]
        nodes_R = batch.nodes_R - self.rank * len(hidden_nH)
        own = torch.nonzero((nodes_R >= 0) & (nodes_R < len(hidden_nH)))[:, 0]
        place_R = torch.full_like(nodes_R, -1)
        place_R[own] = torch.arange(len(own), device=own.device)
        rows_T = place_R[batch.rows_T]
        terms = torch.nonzero(rows_T >= 0)[:, 0]
        reading = Reading(
            nodes_R[own], batch.temperatures_R[own], rows_T[terms], batch.targets_T[terms]
        )
        if not len(terms):  # the pass backward is the same on every rank
            one = torch.zeros_like(batch.rows_T[:1])
            reading = Reading(one, batch.temperatures_R[:1], one, one)
        values = values_of(hidden_nH[reading.nodes_R], reading)
        count = len(batch.rows_T)
        return [_joined(value[: len(terms)], terms, count, self.group) for value in values]

    def _exchange(self, parts: Tensor) -> Tensor:
        exchanged: Tensor = _Exchange.apply(parts, self.group)  # type: ignore[no-untyped-call]
        return exchanged


class _Exchange(torch.autograd.Function):
    """An exchange: part number i goes to rank i, and part number j comes from rank j. The backward pass does the
    same."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        ctx.group = group
        received = torch.empty_like(parts, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, parts.contiguous(), group=group)
        return received

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        received = torch.empty_like(grad, memory_format=torch.contiguous_format)
        dist.all_to_all_single(received, grad.contiguous(), group=ctx.group)
        return received, None


def _joined(values: Tensor, terms: Tensor, count: int, group: dist.ProcessGroup | None) -> Tensor:
    joined: Tensor = _Joined.apply(values, terms, count, group)  # type: ignore[no-untyped-call]
    return joined


class _Joined(torch.autograd.Function):
    """The values of all ranks, joined. Each rank computes the loss of all values, and gets the gradient of its own."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, terms: Tensor, count: int, group: dist.ProcessGroup | None
    ) -> Tensor:
        ctx.save_for_backward(terms)
        joined = values.new_zeros(count)
        joined[terms] = values
        dist.all_reduce(joined, group=group)
        return joined

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor) -> tuple[Tensor, None, None, None]:
        (terms,) = ctx.saved_tensors
        return grad_T[terms], None, None, None
