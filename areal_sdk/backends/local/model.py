"""The forward pass of a dense Llama-family decoder, written for batches of unequal requests.

Shape letters: T tokens of this step, B decoding rows, C capacity of a row, N hidden, Q query heads,
K key/value heads, G = Q / K, D head dimension, V vocabulary, S sampled positions.

A projection fuses several matrices of the checkpoint, in the layout that is fastest on this CPU.

A packed weight (oneDNN's blocked layout) halves the time of a bf16 decode step on AVX-512, and makes
fp32 up to three times faster on CPUs for which MKL is slow. torch reorders a plain weight in every
call; a packed weight is reordered once per weight update. See ADR 0003.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from areal_sdk.backends.local.architecture import Architecture, Rope
from areal_sdk.backends.local.kv_cache import KVRows

FEW_ROWS = 8
"""Up to so many, and in fp32 always, one fused attention call beats two batched matrix products."""


@dataclass(frozen=True, slots=True)
class DecodeRun:
    """Neighbouring rows that each bring one token: one attention call."""

    tokens: slice
    rows: slice
    length: int
    """Of the longest row, its new token included."""
    mask: Tensor | None
    """[B, 1, 1, length] in float32, added to the scores; None when all rows are equally long."""


@dataclass(frozen=True, slots=True)
class PrefillSpan:
    """Several new tokens of one row."""

    tokens: slice
    row: int
    length: int
    """Of the row, the new tokens included."""
    mask: Tensor | None
    """[new, length], True where visible; None when the row starts here (plain causal)."""


@dataclass(frozen=True, slots=True)
class ForwardInput:
    """The input of one forward: tokens of many rows, and the places of their KV."""

    tokens_T: Tensor
    positions_T: Tensor
    kv_index: Tensor
    """As `KVRows.index` gives it."""
    attention: Sequence[DecodeRun | PrefillSpan]
    """Covers tokens [0, T) in order; padding tokens past the last one attend to nothing."""
    sampled_S: Tensor
    """Indices into T whose logits are wanted; may be empty."""


class Layer:
    def __init__(
        self, architecture: Architecture, *, device: torch.device, dtype: torch.dtype, packed: bool
    ) -> None:
        a = architecture

        def linear(n_in: int, n_out: int, bias: bool) -> Linear:
            return Linear(n_in, n_out, has_bias=bias, device=device, dtype=dtype, packed=packed)

        def norm(size: int) -> Tensor:
            return torch.empty(size, device=device, dtype=dtype)

        queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        self.input_norm = norm(a.hidden_size)
        self.qkv = linear(a.hidden_size, queries + 2 * keys, a.qkv_bias)
        self.query_norm = norm(a.head_dim) if a.qk_norm else None
        self.key_norm = norm(a.head_dim) if a.qk_norm else None
        self.output = linear(queries, a.hidden_size, a.output_bias)
        self.mlp_norm = norm(a.hidden_size)
        self.gate_up = linear(a.hidden_size, 2 * a.intermediate_size, a.mlp_bias)
        self.down = linear(a.intermediate_size, a.hidden_size, a.mlp_bias)


class Model:
    """Weights and forward. `loader` fills the weights in; `KVRows` holds the past."""

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
            gate_up = layer.gate_up(normed_TN)
            gate, up = gate_up.chunk(2, dim=-1)
            hidden_TN = hidden_TN + layer.down(F.silu(gate).mul_(up))
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


def decode_attention(queries_BKGD: Tensor, cache: Tensor, run: DecodeRun) -> Tensor:
    """[B, Q * D]: each row's one new token over its row of the cache [2, rows, K, C, D]."""
    # The G query heads that share a key head stand where a sequence would: no key is repeated.
    keys_BKCD, values_BKCD = cache[:, run.rows, :, : run.length]
    if len(queries_BKGD) <= FEW_ROWS or queries_BKGD.dtype is torch.float32:
        mask = None if run.mask is None else run.mask.to(queries_BKGD.dtype)
        return F.scaled_dot_product_attention(
            queries_BKGD, keys_BKCD, values_BKCD, attn_mask=mask
        ).flatten(1)
    batch, _, num_groups, head_dim = queries_BKGD.shape
    queries = (queries_BKGD * head_dim**-0.5).reshape(-1, num_groups, head_dim)
    # Keys on the left: oneDNN is twice as fast than with the few queries there.
    scores = torch.bmm(keys_BKCD.flatten(0, 1), queries.transpose(1, 2)).transpose(1, 2)
    scores = scores.to(torch.float32, memory_format=torch.contiguous_format)
    if run.mask is not None:
        scores.view(batch, -1, num_groups, run.length).add_(run.mask)
    weights = scores.softmax(-1).to(queries.dtype)
    return torch.bmm(weights, values_BKCD.flatten(0, 1)).view(batch, -1)


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


_PACK_PROBE_SHAPE = (32, 16)
_SMALL_FP32 = 1 << 16
"""Weights: below, the packed call's overhead (10 us) costs more than its layout saves."""


class Linear:
    """`x @ weight.T + bias`, the weight replaced whole by `load`."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        has_bias: bool,
        device: torch.device,
        dtype: torch.dtype,
        packed: bool,
    ) -> None:
        self.in_features = in_features
        self.out_features = out_features
        self.has_bias = has_bias
        self._device = device
        self._dtype = dtype
        is_small = dtype is torch.float32 and in_features * out_features < _SMALL_FP32
        self.is_packed = packed and not is_small
        self._weight: Tensor | None = None
        self._bias: Tensor | None = None

    def load(self, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> None:
        """Take copies of `weights`, stacked along the output dimension."""
        if self.is_packed:
            parts = [weight.to(self._dtype) for weight in weights]
            dense = parts[0] if len(parts) == 1 else torch.cat(parts)
            self._weight = torch.ops.mkldnn._reorder_linear_weight(dense)
        else:
            self._weight = self._stacked(
                self._weight, weights, (self.out_features, self.in_features)
            )
        if self.has_bias:
            self._bias = self._stacked(self._bias, biases, (self.out_features,))

    def _stacked(
        self, target: Tensor | None, parts: Sequence[Tensor], shape: tuple[int, ...]
    ) -> Tensor:
        if target is None:
            target = torch.empty(shape, device=self._device, dtype=self._dtype)
        start = 0
        for part in parts:
            target[start : start + len(part)].copy_(part)  # casts and crosses devices as needed
            start += len(part)
        assert start == shape[0]
        return target

    def __call__(self, x: Tensor) -> Tensor:
        if self.is_packed:
            y: Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self._weight, self._bias, "none", [], ""
            )
            return y
        assert self._weight is not None
        return F.linear(x, self._weight, self._bias)


def can_pack(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this torch packs weights for this device and computes the same with them.

    The operators are internal to torch (its compiler emits them), so they are tried, not assumed.
    """
    if device.type != "cpu" or dtype not in (torch.bfloat16, torch.float32):
        return False
    if not torch._C._has_mkldnn:
        return False
    if dtype is torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(_PACK_PROBE_SHAPE, generator=generator).to(dtype)
    x = torch.randn((3, _PACK_PROBE_SHAPE[1]), generator=generator).to(dtype)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        y = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    except (RuntimeError, AttributeError):  # another torch: the plain layout works everywhere
        return False
    return torch.allclose(y, F.linear(x, weight), rtol=0.02, atol=0.02)
