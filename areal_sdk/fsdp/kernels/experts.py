"""Experts: the rows of a layer's tokens, sorted by expert, times the matrices of their experts.

transformers has functions for this too. This one differs in three ways. It computes in the type of autocast, as
linear layers do. Its backward pass adds up in one order only. An expert without a row has a gradient of zeros,
whatever a kernel leaves in the memory of a group without rows.

Shapes: N tokens, K experts that a token chose, S = N K rows, E experts, H hidden, I inner, O out.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

EXPERTS = "areal_sdk_sorted"
"""The name of `sorted_experts` among the experts implementations of transformers."""


def sorted_experts(module: Any, hidden_NH: Tensor, chosen_NK: Tensor, weights_NK: Tensor) -> Tensor:
    """The function that a transformers layer calls: the weighted sum of the outputs of each token's experts."""
    num_tokens, num_chosen = chosen_NK.shape
    experts_S, order_S = chosen_NK.flatten().sort(stable=True)
    back_S = order_S.argsort()
    numbers_E = torch.arange(len(module.gate_up_proj), device=experts_S.device)
    ends_E = torch.searchsorted(experts_S, numbers_E, right=True, out_int32=True)

    rows_SH = _Reordered.apply(  # type: ignore[no-untyped-call]
        _as_computed(hidden_NH).repeat_interleave(num_chosen, 0), order_S, back_S
    )
    gate_SI, up_SI = _grouped(rows_SH, module.gate_up_proj, ends_E).chunk(2, dim=-1)
    mixed_SH = _grouped(module.act_fn(gate_SI) * up_SI, module.down_proj, ends_E)
    mixed_SH = _Reordered.apply(mixed_SH, back_S, order_S)  # type: ignore[no-untyped-call]
    weighted_NKH: Tensor = mixed_SH.view(num_tokens, num_chosen, -1) * weights_NK[..., None]
    return weighted_NKH.sum(1).to(hidden_NH.dtype)


def _as_computed(tensor: Tensor) -> Tensor:
    device = tensor.device.type
    if not torch.is_autocast_enabled(device):
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


def _grouped(rows_SI: Tensor, weights_EOI: Tensor, ends_E: Tensor) -> Tensor:
    product: Tensor = _GroupedProduct.apply(  # type: ignore[no-untyped-call]
        rows_SI, _as_computed(weights_EOI), ends_E
    )
    return product


class _Reordered(torch.autograd.Function):
    """`rows[order]`. Torch's backward pass would add rows up; this one looks them up by the inverse order `back`."""

    @staticmethod
    def forward(ctx: Any, rows_SH: Tensor, order_S: Tensor, back_S: Tensor) -> Tensor:
        ctx.save_for_backward(back_S)
        return rows_SH[order_S]

    @staticmethod
    def backward(ctx: Any, grad_SH: Tensor) -> tuple[Tensor, None, None]:
        (back_S,) = ctx.saved_tensors
        return grad_SH[back_S], None, None


class _GroupedProduct(torch.autograd.Function):
    """Each row times the matrix of its expert. The rows of expert e end before row `ends[e]`."""

    @staticmethod
    def forward(ctx: Any, rows_SI: Tensor, weights_EOI: Tensor, ends_E: Tensor) -> Tensor:
        ctx.save_for_backward(rows_SI, weights_EOI, ends_E)
        return F.grouped_mm(rows_SI, weights_EOI.transpose(1, 2), offs=ends_E)

    @staticmethod
    def backward(ctx: Any, grad_SO: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        rows_SI, weights_EOI, ends_E = ctx.saved_tensors
        of_rows, of_weights, _ = ctx.needs_input_grad
        grad_SO = grad_SO.contiguous()
        grad_SI = F.grouped_mm(grad_SO, weights_EOI, offs=ends_E) if of_rows else None
        if not of_weights:
            return grad_SI, None, None
        grad_EOI = F.grouped_mm(grad_SO.t(), rows_SI, offs=ends_E)
        is_idle_E = ends_E.diff(prepend=ends_E.new_zeros(1)) == 0
        return grad_SI, grad_EOI.masked_fill_(is_idle_E[:, None, None], 0.0), None


ALL_EXPERTS_FUNCTIONS.register(EXPERTS, sorted_experts)
