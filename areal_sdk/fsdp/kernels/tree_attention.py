"""Attention over trees of tokens: each token sees its own segment up to itself, and all above it.

A row is covered by blocks of queries with the few key ranges that they see, so that nothing is
computed between trees and nothing larger than a block's scores exists. Probabilities are computed
again in the backward pass instead of kept.

Shapes: K key heads, R query heads per key head, N tokens of the row, Q queries and C keys
(context) of a block, D head dimension.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from areal_sdk.algorithms.packing import Tree
from areal_sdk.fsdp.kernels.sequence_ranks import SequenceRanks
from areal_sdk.fsdp.kernels.sizes import BLOCK_TOKENS

_ALONE = SequenceRanks()

ATTENTION = "areal_tree"
"""The name under which transformers finds `tree_attention`."""


@dataclass(frozen=True, slots=True)
class Block:
    """Queries `[start, stop)` of the row see `context` and `[own_start, stop)`, but for what is hidden."""

    start: int
    stop: int
    context: tuple[tuple[int, int], ...]
    """Ranges of the row: the segments above the queries."""
    own_start: int
    hidden_QC: Tensor
    """True where a query does not see a key: of `[own_start, stop)`, or with a window of `key_ranges`."""

    def to(self, device: torch.device) -> "Block":
        return replace(self, hidden_QC=self.hidden_QC.to(device))

    def within(self, window: int) -> "Block":
        """The block where each query sees, of its path, the last `window` tokens up to itself alone."""
        num_above = sum(stop - start for start, stop in self.context)
        # A query sees its own path: what it sees of the block says where on the path it stands.
        position_Q = num_above - 1 + (~self.hidden_QC).sum(1)
        first = max(0, num_above - window + 1)  # no query sees what is further up
        above = _skip(self.context, first)
        position_C = torch.cat([torch.arange(first, num_above), position_Q])
        hidden_QC = torch.nn.functional.pad(self.hidden_QC, (num_above - first, 0))
        hidden_QC = hidden_QC | (position_Q[:, None] - position_C >= window)
        return replace(self, context=above, hidden_QC=hidden_QC)

    @property
    def key_ranges(self) -> tuple[tuple[int, int], ...]:
        return (*self.context, (self.own_start, self.stop))


class RowBlocks:
    """The blocks of a row, for layers with a window and for layers without; made once for all layers."""

    def __init__(
        self,
        trees: Sequence[Tree],
        *,
        device: torch.device | str = "cpu",
        block_tokens: int = BLOCK_TOKENS,
    ) -> None:
        self._plain = attention_blocks(trees, block_tokens=block_tokens)
        self._device = torch.device(device)
        self._of_window: dict[int | None, Sequence[Block]] = {}

    @property
    def num_tokens(self) -> int:
        return self._plain[-1].stop

    def within(self, window: int | None) -> Sequence[Block]:
        """With a `window` each token sees as many, itself the last, of its path; else all of it."""
        if window not in self._of_window:
            blocks = self._plain if window is None else [b.within(window) for b in self._plain]
            self._of_window[window] = [block.to(self._device) for block in blocks]
        return self._of_window[window]


def attention_blocks(trees: Sequence[Tree], *, block_tokens: int = BLOCK_TOKENS) -> list[Block]:
    """The blocks of a row that holds `trees` one after another."""
    blocks: list[Block] = []
    offset = 0
    for tree in trees:
        context: list[tuple[tuple[int, int], ...]] = []  # of each segment
        covered = 0
        for index, segment in enumerate(tree.segments):
            above: tuple[tuple[int, int], ...] = ()
            if segment.parent >= 0:
                parent = tree.segments[segment.parent]
                above = _extend(
                    context[segment.parent], offset + parent.start, offset + parent.stop
                )
            context.append(above)
            if segment.start < covered:
                continue  # in the block of a segment above it
            if segment.subtree_stop - segment.start <= block_tokens:
                covered = segment.subtree_stop
                start, stop = offset + segment.start, offset + covered
                blocks.append(Block(start, stop, above, start, _hidden(tree, index)))
                continue
            covered = segment.stop
            for start in range(segment.start, segment.stop, block_tokens):
                stop = min(start + block_tokens, segment.stop)
                earlier = _extend(above, offset + segment.start, offset + start)
                later = torch.ones(stop - start, stop - start, dtype=torch.bool).triu(1)
                blocks.append(Block(offset + start, offset + stop, earlier, offset + start, later))
        offset += len(tree)
    return blocks


def _extend(
    ranges: tuple[tuple[int, int], ...], start: int, stop: int
) -> tuple[tuple[int, int], ...]:
    if start == stop:
        return ranges
    if ranges and ranges[-1][1] == start:
        return (*ranges[:-1], (ranges[-1][0], stop))
    return (*ranges, (start, stop))


def _skip(ranges: Sequence[tuple[int, int]], count: int) -> tuple[tuple[int, int], ...]:
    """`ranges` without their first `count` tokens."""
    left = []
    for start, stop in ranges:
        skipped = min(count, stop - start)
        count -= skipped
        if start + skipped < stop:
            left.append((start + skipped, stop))
    return tuple(left)


def _hidden(tree: Tree, root: int) -> Tensor:
    """Who does not see whom in the subtree of segment `root`."""
    top = tree.segments[root]
    hidden = np.ones((top.subtree_stop - top.start,) * 2, dtype=bool)
    for segment in tree.segments[root:]:
        if segment.start >= top.subtree_stop:
            break
        start, stop = segment.start - top.start, segment.stop - top.start
        if segment.start > top.start:
            parent_stop = tree.segments[segment.parent].stop - top.start
            hidden[start:stop] = hidden[parent_stop - 1]
        hidden[start:stop, start:stop] = ~np.tri(stop - start, dtype=bool)
    return torch.from_numpy(hidden)


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
    """The attention function that a transformers layer calls; `blocks` and `sequence` come through the model's
    forward, `sliding_window` and
    `softcap` from the layer."""
    num_tokens = blocks.num_tokens
    dtype = value.dtype  # rotary embeddings leave float32 behind under autocast
    q, k, v = (sequence.to_heads(x[0].to(dtype), num_tokens) for x in (query, key, value))
    with torch.autocast(value.device.type, enabled=False):  # which would widen the softmax
        out: Tensor = _BlockAttention.apply(  # type: ignore[no-untyped-call]
            q.reshape(len(k), -1, num_tokens, q.shape[-1]),
            k,
            v,
            blocks.within(sliding_window),
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
            _attend(q_KRND, k_KND, v_KND, out_KRND, block, scaling, cap)
        ctx.save_for_backward(q_KRND, k_KND, v_KND)
        ctx.blocks, ctx.scaling, ctx.cap = blocks, scaling, cap
        return out_KRND

    @staticmethod
    def backward(ctx: Any, grad_KRND: Tensor) -> tuple[Tensor | None, ...]:
        q_KRND, k_KND, v_KND = ctx.saved_tensors
        dq = torch.empty_like(q_KRND, memory_format=torch.contiguous_format)
        dk = torch.zeros_like(k_KND, memory_format=torch.contiguous_format)
        dv = torch.zeros_like(dk)
        for block in ctx.blocks:
            states = q_KRND, k_KND, v_KND
            _pass_back(grad_KRND, states, (dq, dk, dv), block, ctx.scaling, ctx.cap)
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
    """Add the gradients of a block's queries, and of what they see, to those of all."""
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
    _scatter_add(dk, block, torch.bmm(ds.transpose(1, 2), q))
    _scatter_add(dv, block, torch.bmm(p.transpose(1, 2), grad))


def _probabilities(
    q_KRND: Tensor,
    k_KND: Tensor,
    v_KND: Tensor,
    block: Block,
    scaling: float,
    cap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention probabilities of a block, (K, R * Q, C), and its keys and values, (K, C, D)."""
    num_key_heads, num_repeats, _, head_dim = q_KRND.shape
    num_queries = block.stop - block.start
    k, v = _gather(k_KND, block), _gather(v_KND, block)
    q = q_KRND[:, :, block.start : block.stop].reshape(num_key_heads, -1, head_dim)
    scores = _scores(q, k, scaling)
    if cap is not None:
        scores = scores.div_(cap).tanh_().mul_(cap)
    last = scores.view(num_key_heads, num_repeats, num_queries, -1)
    last = last[..., -block.hidden_QC.shape[1] :]
    last.masked_fill_(block.hidden_QC, float("-inf"))
    return torch.softmax(scores, dim=-1).to(v.dtype), k, v


def _scores(q_KQD: Tensor, k_KCD: Tensor, scaling: float) -> Tensor:
    """In float32: where keys have large biases, bfloat16 would round off what tells them apart."""
    if q_KQD.is_cuda and q_KQD.dtype is not torch.float32:
        return torch.bmm(q_KQD, k_KCD.transpose(1, 2), out_dtype=torch.float32).mul_(scaling)
    return torch.bmm(q_KQD.float() * scaling, k_KCD.float().transpose(1, 2))


def _gather(x_KND: Tensor, block: Block) -> Tensor:
    parts = [x_KND[:, start:stop] for start, stop in block.key_ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _scatter_add(x_KND: Tensor, block: Block, parts_KCD: Tensor) -> None:
    done = 0
    for start, stop in block.key_ranges:
        x_KND[:, start:stop] += parts_KCD[:, done : done + stop - start]
        done += stop - start


AttentionInterface.register(ATTENTION, tree_attention)
