"""The memory of keys and values: dense rows for running requests, exact-length copies for idle ones."""

import math
import mmap
from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Tokens: TypeAlias = npt.NDArray[np.int32]

MIN_ROW_LENGTH = 256


def common_prefix(a: Tokens, b: Tokens) -> int:
    """The number of leading tokens that two sequences share."""
    length = min(len(a), len(b))
    differs = a[:length] != b[:length]
    first = int(differs.argmax()) if length else 0
    return first if length and differs[first] else length


def _zeros(shape: tuple[int, ...], *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Memory filled with zeros, because masked attention multiplies stale entries by 0, and 0 * NaN is NaN.

    On a CPU the zeros are fresh pages of the system, which cost nothing until they are used. `torch.zeros` would write
    to all pages, so that one request on an idle engine would pay for every row that the engine may have.
    """
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    pages = mmap.mmap(-1, math.prod(shape) * dtype.itemsize)
    return torch.frombuffer(pages, dtype=dtype).view(shape)


class KVRows:
    """The KV of running requests: one row each, rows [0, running) in use, all of one capacity.

    Dense, so that a decode step is one attention call a layer. `values` is [layers, 2 (keys, values), rows, heads,
    capacity, head dimension]; capacity doubles as rows grow, within a budget of tokens.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_heads: int,
        head_dim: int,
        max_rows: int,
        max_length: int,
        budget_tokens: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.max_length = max_length
        self._max_rows = max_rows
        self._budget_tokens = max(budget_tokens, max_length)
        self._num_layers, self._num_heads, self._head_dim = num_layers, num_heads, head_dim
        self._device = device
        self._dtype = dtype
        self.reset()

    @property
    def length(self) -> int:
        """Number of tokens for which a row has room now."""
        return self.values.shape[4]

    @property
    def scratch_row(self) -> int:
        """The last row, which belongs to no request: padding tokens write there."""
        return self.values.shape[2] - 1

    def index(self, rows_T: Tensor, positions_T: Tensor) -> Tensor:
        """Indices into a layer's vectors for the KV of T tokens, by token, kind and head."""
        starts_T = rows_T * (self._num_heads * self.length) + positions_T
        return (starts_T[:, None] + self._block_starts).flatten()

    def rows_at(self, length: int) -> int:
        """The number of rows that fit in memory when the longest has `length` tokens."""
        capacity = self._capacity_for(length)
        return max(1, min(self._max_rows, self._budget_tokens // capacity))

    def fit(self, length: int, *, rows: int) -> None:
        """Make room for `rows` rows of `length` tokens. The content of rows up to that size stays."""
        if length <= self.length and rows <= self.scratch_row:
            return
        assert rows <= self.rows_at(length), "the scheduler preempts before more is needed"
        old = self.values
        self._allocate(self._capacity_for(length))
        kept_rows, kept = min(rows, old.shape[2] - 1), min(self.length, old.shape[4])
        self.values[:, :, :kept_rows, :, :kept].copy_(old[:, :, :kept_rows, :, :kept])

    def shrink(self) -> None:
        """Give memory back; only when no row is in use."""
        if self.length > MIN_ROW_LENGTH:
            self.reset()

    def reset(self) -> None:
        """Empty rows of the smallest capacity."""
        self._allocate(min(MIN_ROW_LENGTH, self.max_length))

    def copy_prefix(self, source: int, target: int, num_tokens: int) -> None:
        self.values[:, :, target, :, :num_tokens].copy_(self.values[:, :, source, :, :num_tokens])

    def export(self, row: int, num_tokens: int) -> Tensor:
        return self.values[:, :, row, :, :num_tokens].clone()

    def restore(self, row: int, saved: Tensor, num_tokens: int) -> None:
        self.values[:, :, row, :, :num_tokens].copy_(saved[:, :, :, :num_tokens])

    def _capacity_for(self, length: int) -> int:
        capacity = MIN_ROW_LENGTH
        while capacity < length:
            capacity *= 2
        return min(capacity, self.max_length)

    def _allocate(self, length: int) -> None:
        rows = max(1, min(self._max_rows, self._budget_tokens // length)) + 1  # and the scratch row
        shape = (self._num_layers, 2, rows, self._num_heads, length, self._head_dim)
        self.values = _zeros(shape, device=self._device, dtype=self._dtype)
        # Where, in a layer's vectors, the first row's keys and values of each head begin.
        kinds, heads = torch.arange(2), torch.arange(self._num_heads)
        starts = (kinds[:, None] * (rows * self._num_heads) + heads) * length
        self._block_starts = starts.flatten().to(self._device)


@dataclass(slots=True)
class SavedPrefix:
    """The KV of a token sequence that nobody is extending right now."""

    tokens: Tokens
    values: Tensor
    """[layers, 2, heads, tokens, head dimension]"""

    @property
    def num_bytes(self) -> int:
        return self.values.numel() * self.values.element_size()


class PrefixStore:
    """Least-recently-used KV of finished requests, all computed under the current weights.

    The saved sequences are in lexicographic order. The saved sequence with the longest common prefix is then a
    neighbour of a new sequence, so a search is one bisection. No saved sequence is a prefix of another.
    """

    def __init__(self, budget_bytes: int) -> None:
        self._budget_bytes = budget_bytes
        self._saved: OrderedDict[bytes, SavedPrefix] = OrderedDict()
        """Saved prefixes by sort key, least recently used first."""
        self._sorted: list[bytes] = []
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._saved)

    def save(self, prefix: SavedPrefix) -> None:
        """Keep `prefix`, and drop a saved prefix that it begins with. Drop the least recently used ones to make room."""
        key = _sort_key(prefix.tokens)
        for neighbour in self._neighbours(key):
            if neighbour.startswith(key):
                self._saved.move_to_end(neighbour)
                return
            if key.startswith(neighbour):
                self._drop(neighbour)
        if prefix.num_bytes > self._budget_bytes:
            return
        while self.num_bytes + prefix.num_bytes > self._budget_bytes:
            self._drop(next(iter(self._saved)))
        self._saved[key] = prefix
        insort(self._sorted, key)
        self.num_bytes += prefix.num_bytes

    def longest(self, tokens: Tokens) -> tuple[int, SavedPrefix | None]:
        """The saved sequence that shares most leading tokens with `tokens`, and how many."""
        best_key, best_length = b"", 0
        for key in self._neighbours(_sort_key(tokens)):
            length = common_prefix(self._saved[key].tokens, tokens)
            if length > best_length:
                best_key, best_length = key, length
        if best_length == 0:
            return 0, None
        self._saved.move_to_end(best_key)
        return best_length, self._saved[best_key]

    def clear(self) -> None:
        self._saved.clear()
        self._sorted.clear()
        self.num_bytes = 0

    def _neighbours(self, key: bytes) -> list[bytes]:
        index = bisect_left(self._sorted, key)
        return self._sorted[max(0, index - 1) : index + 1]

    def _drop(self, key: bytes) -> None:
        self.num_bytes -= self._saved.pop(key).num_bytes
        del self._sorted[bisect_left(self._sorted, key)]


def _sort_key(tokens: Tokens) -> bytes:
    """The tokens as big-endian bytes, which sort as the tokens do."""
    return tokens.astype(">i4").tobytes()
