"""Attention of a block's queries to a range of keys that all of them see, or causally to themselves, by torch's fused kernels.

They keep no scores. The outputs of two ranges of keys, weighted by the logarithms of their sums (`merge`), are the
output of one softmax over both. The backward pass takes the output and the logarithm over all ranges.

Shapes: K key heads, R query heads per key head, Q queries, C keys, D head dimension.
"""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

_PROBE_TOKENS = 72
_PROBE_ERROR = 0.02


@cache
def can_fuse(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Whether this torch has correct kernels for this device, type and dimension.

    The operators are internal to torch, so they are tried, not assumed.
    """
    generator = torch.Generator().manual_seed(0)

    def draw() -> Tensor:
        drawn = torch.randn(2, 2, _PROBE_TOKENS, head_dim, generator=generator)
        return drawn.to(device, dtype)

    q, grad, k, v = draw(), draw(), draw()[:, 0], draw()[:, 0]
    with torch.no_grad():
        try:
            ours = _both_passes(q, k, v, grad)
        except (RuntimeError, AttributeError):  # another torch, another device
            return False
        return all(
            bool((a.double() - b).norm() < _PROBE_ERROR * b.norm())
            for a, b in zip(ours, _exact(q, k, v, grad), strict=True)
        )


def attend(
    q_KRQD: Tensor, k_KCD: Tensor, v_KCD: Tensor, *, is_causal: bool, scaling: float
) -> tuple[Tensor, Tensor]:
    """The output, and for each query log sum exp(s) over its scores s."""
    k, v = _of_repeats(q_KRQD, k_KCD), _of_repeats(q_KRQD, v_KCD)
    out, lse, *_ = _forward(q_KRQD, k, v, is_causal=is_causal, scaling=scaling)
    return out, lse


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Output and logarithm over several ranges of keys, from the outputs and logarithms of each range."""
    [(out, lse), *others] = parts
    for other, its_lse in others:
        both = torch.logaddexp(lse, its_lse)
        mine, its = ((part - both).exp()[..., None] for part in (lse, its_lse))
        out = (out.float() * mine + other.float() * its).to(out.dtype)
        lse = both
    return out, lse


def pass_back(
    grad_KRQD: Tensor,
    q_KRQD: Tensor,
    k_KCD: Tensor,
    v_KCD: Tensor,
    merged: tuple[Tensor, Tensor],
    *,
    is_causal: bool,
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v from one range of keys. `merged` holds the output and the logarithm over all
    ranges."""
    out, lse = merged
    k, v = _of_repeats(q_KRQD, k_KCD), _of_repeats(q_KRQD, v_KCD)
    dq, dk, dv = _backward(grad_KRQD, q_KRQD, k, v, out, lse, is_causal=is_causal, scaling=scaling)
    return dq, dk.float().sum(1).to(dk.dtype), dv.float().sum(1).to(dv.dtype)


def _of_repeats(q_KRQD: Tensor, x_KCD: Tensor) -> Tensor:
    return x_KCD[:, None].expand(-1, q_KRQD.shape[1], -1, -1)


def _forward(
    q: Tensor, k: Tensor, v: Tensor, *, is_causal: bool, scaling: float
) -> tuple[Tensor, ...]:
    aten = torch.ops.aten
    place = "_for_cpu" if q.device.type == "cpu" else ""
    attention = getattr(aten, f"_scaled_dot_product_flash_attention{place}")
    return tuple(attention(q, k, v, 0.0, is_causal, scale=scaling))


def _backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    *,
    is_causal: bool,
    scaling: float,
) -> tuple[Tensor, ...]:
    aten, given = torch.ops.aten, (grad, q, k, v, out, lse)
    if q.device.type == "cpu":
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward
        return tuple(backward(*given, 0.0, is_causal, scale=scaling))
    backward = aten._scaled_dot_product_flash_attention_backward
    none = torch.empty((), dtype=torch.uint64, device=q.device)  # no dropout
    rest = (None, None, q.shape[2], k.shape[2], 0.0, is_causal, none, none)
    return tuple(backward(*given, *rest, scale=scaling))


def _both_passes(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> list[Tensor]:
    """Output and gradients of queries that attend to the same keys twice: with a causal mask, and with none."""
    scaling = q.shape[-1] ** -0.5
    merged = merge([attend(q, k, v, is_causal=c, scaling=scaling) for c in (True, False)])
    parts = [pass_back(grad, q, k, v, merged, is_causal=c, scaling=scaling) for c in (True, False)]
    return [merged[0], *(a.float() + b.float() for a, b in zip(*parts, strict=True))]


def _exact(q: Tensor, k: Tensor, v: Tensor, grad: Tensor) -> list[Tensor]:
    """Output and gradients in float64, without autograd: the first caller may be a layer whose
    saved tensors are counted (checkpointing)."""
    q, k, v, grad = (x.double() for x in (q, k, v, grad))
    keys, values, scaling = torch.cat([k, k], 1), torch.cat([v, v], 1), q.shape[-1] ** -0.5
    scores = torch.einsum("krqd,kcd->krqc", q, keys) * scaling
    hidden = torch.ones(q.shape[2], k.shape[1], dtype=torch.bool, device=q.device).triu(1)
    scores[..., : k.shape[1]].masked_fill_(hidden, float("-inf"))
    p = scores.softmax(-1)
    dp = torch.einsum("krqd,kcd->krqc", grad, values)
    ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scaling
    dk, dv = torch.einsum("krqc,krqd->kcd", ds, q), torch.einsum("krqc,krqd->kcd", p, grad)
    return [
        torch.einsum("krqc,kcd->krqd", p, values),
        torch.einsum("krqc,kcd->krqd", ds, keys),
        *(x.view(len(x), 2, *k.shape[1:]).sum(1) for x in (dk, dv)),
    ]
