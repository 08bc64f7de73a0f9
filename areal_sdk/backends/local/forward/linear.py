"""Linear layers whose weight is replaced whole, packed where that is faster.

A packed weight (oneDNN's blocked layout) halves the time of a bf16 decode step on AVX-512, and makes
fp32 up to three times faster on CPUs for which MKL is slow. torch reorders a plain weight in every
call; a packed weight is reordered once per weight update. See ADR 0003.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

_PACK_PROBE_SHAPE = (32, 16)
_SMALL_FP32 = 1 << 16
"""Number of weights below which the overhead of the packed call (10 us) costs more than its layout saves."""


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
