"""The forward pass of a Llama-family decoder, written for batches of unequal requests.

Shape letters: T tokens of this step, B decoding rows, W tokens of each of them, C capacity of a row, N hidden, Q query heads,
K key/value heads, G = Q / K, D head dimension, V vocabulary, S sampled positions.

A projection fuses several matrices of the checkpoint, in the layout that is fastest on this CPU.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from areal_sdk.backends.local.forward.architecture import Architecture, Rope
from areal_sdk.backends.local.forward.feed_forward import Experts, FeedForward
from areal_sdk.backends.local.forward.kv_cache import KVRows
from areal_sdk.backends.local.forward.linear import Linear

FEW_ROWS = 8
"""Number of rows up to which one fused attention call beats two batched matrix products; in fp32 it always does."""


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """Neighbouring rows that each bring one token, or a few more with drafts: one attention call."""

    tokens: slice
    rows: slice
    length: int
    """Length of the longest row, its new tokens included."""
    mask: Tensor | None
    """[B, 1, W, length] in float32, added to the scores; None when every token sees the whole length."""
    width: int = 1
    """W, the largest number of tokens that a row brings."""
    places: Tensor | None = None
    """Indices of the tokens in [B * W]; None when all rows bring W tokens."""


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """Several new tokens of one row."""

    tokens: slice
    row: int
    length: int
    """Length of the row, the new tokens included."""
    mask: Tensor | None
    """[new, length], True where visible; None when the row starts here (plain causal)."""


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """The input of one forward: tokens of many rows, and the places of their KV."""

    tokens_T: Tensor
    positions_T: Tensor
    kv_index: Tensor
    """Indices of the new tokens' KV, from `KVRows.index`."""
    attention: Sequence[DecodeRun | PrefillSpan]
    """Covers tokens [0, T) in order; padding tokens past the last one attend to nothing."""
    sampled_S: Tensor
    """Indices into T whose logits are wanted; may be empty."""
    is_fixed: bool = False
    """Whether the step always has the same number of tokens, and no token's last digits may depend on the others."""


class Layer:
    def __init__(
        self, architecture: Architecture, *, device: torch.device, dtype: torch.dtype, packed: bool
    ) -> None:
        a = architecture

        linear = partial(Linear, device=device, dtype=dtype, packed=packed)

        def norm(size: int) -> Tensor:
            return torch.empty(size, device=device, dtype=dtype)

        queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        self.input_norm = norm(a.hidden_size)
        self.qkv = linear(a.hidden_size, queries + 2 * keys, has_bias=a.qkv_bias)
        self.query_norm = norm(a.head_dim) if a.qk_norm else None
        self.key_norm = norm(a.head_dim) if a.qk_norm else None
        self.output = linear(queries, a.hidden_size, has_bias=a.output_bias)
        self.mlp_norm = norm(a.hidden_size)
        self.feed_forward: FeedForward | Experts
        if a.mixture is None:
            self.feed_forward = FeedForward(
                a.hidden_size, a.intermediate_size, linear, has_bias=a.mlp_bias
            )
        else:
            self.feed_forward = Experts(
                a.hidden_size, a.mixture, linear, adds_up_to_one=a.norm_topk_prob
            )
        self.linears = {"qkv": self.qkv, "output": self.output, **self.feed_forward.linears}
        """The linear projections, by the names that `checkpoint` gives them."""


class Model:
    """Weights and forward pass. `checkpoint` fills the weights in; `KVRows` holds the past."""

    def __init__(
        self, architecture: Architecture, *, device: torch.device, dtype: torch.dtype, packed: bool
    ) -> None:
        a = self.architecture = architecture
        self.device = device
        self.dtype = dtype
        self.embedding = torch.empty((a.vocab_size, a.hidden_size), device=device, dtype=dtype)
        self.layers = [
            Layer(a, device=device, dtype=dtype, packed=packed) for _ in range(a.num_layers)
        ]
        self.norm = torch.empty(a.hidden_size, device=device, dtype=dtype)
        self.head = Linear(
            a.hidden_size, a.vocab_size, has_bias=False, device=device, dtype=dtype, packed=packed
        )
        frequencies = rope_frequencies(a.rope, a.head_dim)
        self._frequencies_D = torch.cat([frequencies, frequencies]).to(device)
        # rotate_half negates the first half; in the sine, so that rotating is a plain roll.
        signs = torch.ones_like(frequencies)
        self._signs_D = torch.cat([-signs, signs]).to(device)

    @torch.inference_mode()
    def forward(self, step: ForwardInput, kv: KVRows) -> Tensor:
        """Logits [S, V] of the wanted positions; writes the KV of all T tokens."""
        a = self.architecture
        cos_T1D, sin_T1D = self._rotation(step.positions_T)
        hidden_TN = F.embedding(step.tokens_T, self.embedding)
        for layer, values in zip(self.layers, kv.values, strict=True):
            normed_TN = F.rms_norm(hidden_TN, (a.hidden_size,), layer.input_norm, a.norm_eps)
            hidden_TN = hidden_TN + self._attend(layer, normed_TN, cos_T1D, sin_T1D, values, step)
            normed_TN = F.rms_norm(hidden_TN, (a.hidden_size,), layer.mlp_norm, a.norm_eps)
            hidden_TN = hidden_TN + layer.feed_forward(normed_TN, is_fixed=step.is_fixed)
        if len(step.sampled_S) == 0:  # part of a long prompt
            return hidden_TN.new_empty((0, a.vocab_size))
        if len(step.sampled_S) < len(hidden_TN):
            hidden_TN = hidden_TN[step.sampled_S]
        return self.head(F.rms_norm(hidden_TN, (a.hidden_size,), self.norm, a.norm_eps))

    def _rotation(self, positions_T: Tensor) -> tuple[Tensor, Tensor]:
        angles_T1D = positions_T[:, None, None] * self._frequencies_D
        sin_T1D = angles_T1D.sin().mul_(self._signs_D)
        return angles_T1D.cos().to(self.dtype), sin_T1D.to(self.dtype)

    def _attend(
        self,
        layer: Layer,
        normed_TN: Tensor,
        cos_T1D: Tensor,
        sin_T1D: Tensor,
        values: Tensor,
        step: ForwardInput,
    ) -> Tensor:
        a = self.architecture
        num_rotated = a.num_heads + a.num_kv_heads
        qkv = layer.qkv(normed_TN)
        heads = qkv.view(len(qkv), num_rotated + a.num_kv_heads, a.head_dim)
        rotated = heads[:, :num_rotated]
        if layer.query_norm is not None and layer.key_norm is not None:
            shape, eps = (a.head_dim,), a.norm_eps
            queries, keys = rotated[:, : a.num_heads], rotated[:, a.num_heads :]
            queries.copy_(F.rms_norm(queries, shape, layer.query_norm, eps))
            keys.copy_(F.rms_norm(keys, shape, layer.key_norm, eps))
        rolled = rotated.roll(a.head_dim // 2, -1)
        rotated.mul_(cos_T1D).addcmul_(rolled, sin_T1D)
        num_queries = a.num_heads * a.head_dim
        values.view(-1, a.head_dim).index_copy_(
            0, step.kv_index, qkv[:, num_queries:].reshape(-1, a.head_dim)
        )
        queries_TKGD = qkv[:, :num_queries].view(len(qkv), a.num_kv_heads, -1, a.head_dim)
        return layer.output(self._attention(queries_TKGD, values, step))

    def _attention(self, queries_TKGD: Tensor, cache: Tensor, step: ForwardInput) -> Tensor:
        outputs = [
            decode_attention(queries_TKGD[part.tokens], cache, part)
            if isinstance(part, DecodeRun)
            else _prefill_attention(queries_TKGD[part.tokens], cache, part)
            for part in step.attention
        ]
        covered = step.attention[-1].tokens.stop
        if covered < len(queries_TKGD):  # padding rows of the fixed-shape decode
            outputs.append(queries_TKGD[covered:].flatten(1))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def decode_attention(queries_TKGD: Tensor, cache: Tensor, run: DecodeRun) -> Tensor:
    """Attention, [T, Q * D], of the new tokens of B rows over their rows of the cache, [2, rows, K, C, D]."""
    _, num_heads, num_groups, head_dim = queries_TKGD.shape
    queries_BKGD, mask = queries_TKGD, run.mask
    if run.width > 1:
        # The tokens of a row stand beside the G query heads, which see the same keys.
        if run.places is not None:
            padded = (len(cache[0, run.rows]) * run.width, num_heads, num_groups, head_dim)
            queries_TKGD = queries_TKGD.new_zeros(padded).index_copy_(0, run.places, queries_TKGD)
        by_row = queries_TKGD.view(-1, run.width, num_heads, num_groups, head_dim)
        queries_BKGD = by_row.transpose(1, 2).flatten(2, 3)
        if mask is not None:
            mask = mask.repeat_interleave(num_groups, dim=2)
    mixed_BKGD = _grouped_attention(queries_BKGD, cache[:, run.rows, :, : run.length], mask)
    if run.width == 1:
        return mixed_BKGD.flatten(1)
    by_row = mixed_BKGD.view(-1, num_heads, run.width, num_groups, head_dim).transpose(1, 2)
    mixed_TN = by_row.reshape(-1, num_heads * num_groups * head_dim)
    return mixed_TN if run.places is None else mixed_TN[run.places]


def _grouped_attention(queries_BKGD: Tensor, cache: Tensor, mask: Tensor | None) -> Tensor:
    """Attention, [B, K, G, D], in which G queries share a key head. `mask` is [B, 1, G or 1, length]."""
    # The G queries that share a key head stand where a sequence would: no key is repeated.
    keys_BKCD, values_BKCD = cache
    if len(queries_BKGD) <= FEW_ROWS or queries_BKGD.dtype is torch.float32:
        mask = None if mask is None else mask.to(queries_BKGD.dtype)
        return F.scaled_dot_product_attention(queries_BKGD, keys_BKCD, values_BKCD, attn_mask=mask)
    batch, _, num_groups, head_dim = queries_BKGD.shape
    queries = (queries_BKGD * head_dim**-0.5).reshape(-1, num_groups, head_dim)
    # Keys on the left: oneDNN is twice as fast than with the few queries there.
    scores = torch.bmm(keys_BKCD.flatten(0, 1), queries.transpose(1, 2)).transpose(1, 2)
    scores = scores.to(torch.float32, memory_format=torch.contiguous_format)
    if mask is not None:
        scores.view(batch, -1, num_groups, keys_BKCD.shape[2]).add_(mask)
    weights = scores.softmax(-1).to(queries.dtype)
    return torch.bmm(weights, values_BKCD.flatten(0, 1)).view(queries_BKGD.shape)


def _prefill_attention(queries_nKGD: Tensor, cache: Tensor, span: PrefillSpan) -> Tensor:
    num_groups = queries_nKGD.shape[2]
    keys_K1CD, values_K1CD = cache[:, span.row, :, None, : span.length]
    mixed_KGnD = F.scaled_dot_product_attention(
        queries_nKGD.permute(1, 2, 0, 3),
        keys_K1CD.expand(-1, num_groups, -1, -1),
        values_K1CD.expand(-1, num_groups, -1, -1),
        attn_mask=span.mask,
        is_causal=span.mask is None,
    )
    return mixed_KGnD.permute(2, 0, 1, 3).flatten(1)


def rope_frequencies(rope: Rope, head_dim: int) -> Tensor:
    """Angle per position of each pair of dimensions, [D / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "default":
        return frequencies
    # Llama 3: long waves are slowed down, short ones kept, those between interpolated.
    wavelengths = 2 * math.pi / frequencies
    turns = rope.original_context / wavelengths
    smooth = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    smooth = smooth.clamp(0.0, 1.0)
    return (1 - smooth) * frequencies / rope.factor + smooth * frequencies
