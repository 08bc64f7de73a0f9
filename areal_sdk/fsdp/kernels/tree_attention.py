"""Attention over trees of tokens: each token sees its own segment up to itself, and all above it.

A row is covered by blocks of queries with the few key ranges that they see (`blocks`), so that nothing is computed
between trees and nothing larger than a block's scores exists. Probabilities are computed again in the backward pass
instead of kept. If there would be many scores, torch's fused kernels compute without them (`fused_attention`).

Shapes: K key heads, R query heads per key head, N tokens of the row, Q queries and C keys
(context) of a block, D head dimension.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from areal_sdk.fsdp.kernels import fused_attention as fused
from areal_sdk.fsdp.kernels.blocks import Block, RowBlocks
from areal_sdk.fsdp.kernels.sequence_ranks import SequenceRanks

_ALONE = SequenceRanks()

ATTENTION = "areal_tree"
"""The name under which transformers finds `tree_attention`."""


def tree_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    blocks: RowBlocks,
    scaling: float,
    sequence: SequenceRanks = _ALONE,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention function that a transformers layer calls; `blocks` and `sequence` come through the model's forward,
    `sliding_window` and `softcap` from the layer."""
    num_tokens = blocks.num_tokens
    dtype = value.dtype  # rotary embeddings leave float32 behind under autocast
    q, k, v = (sequence.to_heads(x[0].to(dtype), num_tokens) for x in (query, key, value))
    if sliding_window is not None and sliding_window >= blocks.longest_path:
        sliding_window = None  # it hides nothing
    is_plain = sliding_window is None and softcap is None
    can_fuse = is_plain and fused.can_fuse(v.device, dtype, v.shape[-1])
    with torch.autocast(value.device.type, enabled=False):  # which would widen the softmax
        out: Tensor = _BlockAttention.apply(  # type: ignore[no-untyped-call]
            q.reshape(len(k), -1, num_tokens, q.shape[-1]),
            k,
            v,
            blocks.whole if can_fuse else blocks.within(sliding_window),
            scaling,
            softcap,
        )
    return sequence.to_tokens(out.view(q.shape))[None].transpose(1, 2), None


class _BlockAttention(torch.autograd.Function):
    """softmax(q k' scaling) v, block by block. With a cap a score s is cap tanh(s / cap)."""

    @staticmethod
    def forward(
        ctx: Any,
        q_KRND: Tensor,
        k_KND: Tensor,
        v_KND: Tensor,
        blocks: Sequence[Block],
        scaling: float,
        cap: float | None,
    ) -> Tensor:
        out_KRND = torch.empty_like(q_KRND, memory_format=torch.contiguous_format)
        for block in blocks:
            if block.in_parts:
                q_KRQD = q_KRND[:, :, block.start : block.stop]
                merged = _attend_in_parts(q_KRQD, k_KND, v_KND, block, scaling)
                out_KRND[:, :, block.start : block.stop] = merged[0]
            else:
                _attend(q_KRND, k_KND, v_KND, out_KRND, block, scaling, cap)
        ctx.save_for_backward(q_KRND, k_KND, v_KND)
        ctx.blocks, ctx.scaling, ctx.cap = blocks, scaling, cap
        return out_KRND

    @staticmethod
    def backward(ctx: Any, grad_KRND: Tensor) -> tuple[Tensor | None, ...]:
        q_KRND, k_KND, v_KND = ctx.saved_tensors
        dq = torch.zeros_like(q_KRND, memory_format=torch.contiguous_format)
        dk = torch.zeros_like(k_KND, memory_format=torch.contiguous_format)
        dv = torch.zeros_like(dk)
        for block in ctx.blocks:
            states, gradients = (q_KRND, k_KND, v_KND), (dq, dk, dv)
            if block.in_parts:
                _pass_back_in_parts(grad_KRND, states, gradients, block, ctx.scaling)
            else:
                _pass_back(grad_KRND, states, gradients, block, ctx.scaling, ctx.cap)
        return dq, dk, dv, None, None, None


# Functions of their own: what a block takes is free before the next one takes as much.


def _attend(
    q_KRND: Tensor,
    k_KND: Tensor,
    v_KND: Tensor,
    out_KRND: Tensor,
    block: Block,
    scaling: float,
    cap: float | None,
) -> None:
    queries = slice(block.start, block.stop)
    p, _, v = _probabilities(q_KRND, k_KND, v_KND, block, scaling, cap)
    out_KRND[:, :, queries] = torch.bmm(p, v).view_as(out_KRND[:, :, queries])


def _pass_back(
    grad_KRND: Tensor,
    states: tuple[Tensor, Tensor, Tensor],
    gradients: tuple[Tensor, Tensor, Tensor],
    block: Block,
    scaling: float,
    cap: float | None,
) -> None:
    """Add the gradients of a block's queries, and of the keys and values that they see, to the totals."""
    q_KRND, k_KND, v_KND = states
    dq, dk, dv = gradients
    queries = slice(block.start, block.stop)
    p, k, v = _probabilities(q_KRND, k_KND, v_KND, block, scaling, cap)
    grad = grad_KRND[:, :, queries].reshape(len(k), -1, k.shape[-1])
    q = q_KRND[:, :, queries].reshape_as(grad)
    dp = torch.bmm(grad, v.transpose(1, 2))
    ds = torch._softmax_backward_data(dp, p, -1, p.dtype).mul_(scaling)
    if cap is not None:  # d cap tanh(s / cap) / ds
        ds.mul_(1.0 - torch.tanh(_scores(q, k, scaling) / cap).square())
    dq[:, :, queries] = torch.bmm(ds, k).view_as(dq[:, :, queries])
    _scatter_add(dk, block.key_ranges, torch.bmm(ds.transpose(1, 2), q))
    _scatter_add(dv, block.key_ranges, torch.bmm(p.transpose(1, 2), grad))


def _probabilities(
    q_KRND: Tensor, k_KND: Tensor, v_KND: Tensor, block: Block, scaling: float, cap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention probabilities of a block, (K, R * Q, C), and its keys and values, (K, C, D)."""
    k, v = _gather(k_KND, block.key_ranges), _gather(v_KND, block.key_ranges)
    q_KRQD = q_KRND[:, :, block.start : block.stop]
    scores = _seen_scores(q_KRQD, k, block.hidden_QC, scaling, cap)
    return torch.softmax(scores, dim=-1).to(v.dtype), k, v


def _attend_in_parts(
    q_KRQD: Tensor, k_KND: Tensor, v_KND: Tensor, block: Block, scaling: float
) -> tuple[Tensor, Tensor]:
    """Attention of a block over its own tokens and over the tokens above it in the tree: the output, and log sum exp(s)
    over the scores s of each query."""
    own = slice(block.own_start, block.stop)
    k, v = k_KND[:, own], v_KND[:, own]
    if block.hidden_QC is None:
        parts = [fused.attend(q_KRQD, k, v, is_causal=True, scaling=scaling)]
    else:
        scores = _seen_scores(q_KRQD, k, block.hidden_QC, scaling, None)
        lse = scores.logsumexp(-1)
        out = torch.bmm((scores - lse[..., None]).exp_().to(v.dtype), v)
        parts = [(out.view(q_KRQD.shape), lse.view(q_KRQD.shape[:3]))]
    if block.context:
        k, v = _gather(k_KND, block.context), _gather(v_KND, block.context)
        parts.append(fused.attend(q_KRQD, k, v, is_causal=False, scaling=scaling))
    return fused.merge(parts)


def _pass_back_in_parts(
    grad_KRND: Tensor,
    states: tuple[Tensor, Tensor, Tensor],
    gradients: tuple[Tensor, Tensor, Tensor],
    block: Block,
    scaling: float,
) -> None:
    """Add gradients, as `_pass_back` does, from the output and the logarithm over all parts."""
    q_KRND, k_KND, v_KND = states
    dq, dk, dv = gradients
    queries, own = slice(block.start, block.stop), (block.own_start, block.stop)
    q, grad = q_KRND[:, :, queries], grad_KRND[:, :, queries]
    merged = _attend_in_parts(q, k_KND, v_KND, block, scaling)
    for ranges, hidden in (((own,), block.hidden_QC), (block.context, None)):
        if not ranges:
            continue
        k, v = _gather(k_KND, ranges), _gather(v_KND, ranges)
        if hidden is None:
            is_causal = ranges[0] == own
            parts = fused.pass_back(grad, q, k, v, merged, is_causal=is_causal, scaling=scaling)
        else:
            parts = _pass_back_masked(grad, (q, k, v), merged, hidden, scaling)
        dq[:, :, queries] += parts[0]
        _scatter_add(dk, ranges, parts[1])
        _scatter_add(dv, ranges, parts[2])


def _pass_back_masked(
    grad_KRQD: Tensor,
    states: tuple[Tensor, Tensor, Tensor],
    merged: tuple[Tensor, Tensor],
    hidden_QC: Tensor,
    scaling: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same gradients as from `fused.pass_back`, with a mask."""
    q_KRQD, k, v = states
    out, lse = (x.flatten(1, 2) for x in merged)
    q, grad = q_KRQD.flatten(1, 2), grad_KRQD.flatten(1, 2)
    p = (_seen_scores(q_KRQD, k, hidden_QC, scaling, None) - lse[..., None]).exp_()
    # What softmax takes off: the mean of dp over all parts.
    mean = (grad.float() * out.float()).sum(-1, keepdim=True)
    dp = torch.bmm(grad, v.transpose(1, 2)).float()
    ds = ((dp - mean) * p).mul_(scaling).to(q.dtype)
    dq = torch.bmm(ds, k).view_as(q_KRQD)
    return dq, torch.bmm(ds.transpose(1, 2), q), torch.bmm(p.to(q.dtype).transpose(1, 2), grad)


def _seen_scores(
    q_KRQD: Tensor, k_KCD: Tensor, hidden_QC: Tensor | None, scaling: float, cap: float | None
) -> Tensor:
    """Scores, (K, R * Q, C), with minus infinity for hidden keys, which are among the last ones."""
    assert hidden_QC is not None
    scores = _scores(q_KRQD.flatten(1, 2), k_KCD, scaling)
    if cap is not None:
        scores = scores.div_(cap).tanh_().mul_(cap)
    last = scores.view(*q_KRQD.shape[:3], -1)[..., -hidden_QC.shape[1] :]
    last.masked_fill_(hidden_QC, float("-inf"))
    return scores


def _scores(q_KQD: Tensor, k_KCD: Tensor, scaling: float) -> Tensor:
    """Scores in float32. If keys have large biases, bfloat16 would round off the differences between them."""
    if q_KQD.device.type != "cpu" and q_KQD.dtype is not torch.float32:
        return torch.bmm(q_KQD, k_KCD.transpose(1, 2), out_dtype=torch.float32).mul_(scaling)
    return torch.bmm(q_KQD.float() * scaling, k_KCD.float().transpose(1, 2))


def _gather(x_KND: Tensor, ranges: Sequence[tuple[int, int]]) -> Tensor:
    parts = [x_KND[:, start:stop] for start, stop in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _scatter_add(x_KND: Tensor, ranges: Sequence[tuple[int, int]], parts_KCD: Tensor) -> None:
    done = 0
    for start, stop in ranges:
        x_KND[:, start:stop] += parts_KCD[:, done : done + stop - start]
        done += stop - start


AttentionInterface.register(ATTENTION, tree_attention)
