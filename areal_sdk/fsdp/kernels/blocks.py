"""Blocks that cover the queries of a row, which packs several prefix trees, and the few key ranges that a block sees."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from areal_sdk.algorithms.packing import Tree
from areal_sdk.fsdp.kernels import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Block:
    """A block of queries. Queries `[start, stop)` of the row see the keys in the ranges `context` and `[own_start, stop)`,
    without those that a mask hides."""

    start: int
    stop: int
    context: tuple[tuple[int, int], ...]
    """Ranges of the row: the segments above the queries."""
    own_start: int
    hidden_QC: Tensor | None
    """True where a query does not see a key of `[own_start, stop)`, or, with a window, of `key_ranges`. None: each
    query sees the keys up to itself."""
    in_parts: bool = False
    """Whether the block's own tokens and those above are too many for their scores to be kept at once."""

    @property
    def num_above(self) -> int:
        return sum(stop - start for start, stop in self.context)

    def to(self, device: torch.device) -> "Block":
        mask = self.hidden_QC
        return self if mask is None else replace(self, hidden_QC=mask.to(device, non_blocking=True))

    def within(self, window: int) -> "Block":
        """The block in which each query sees only the last `window` tokens of its path, itself included."""
        assert self.hidden_QC is not None
        num_above = self.num_above
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
        self.num_tokens = sum(len(tree) for tree in trees)
        self._trees = trees
        self._block_tokens = block_tokens
        self._device = torch.device(device)
        self._of_window: dict[int | None, Sequence[Block]] = {}

    @cached_property
    def longest_path(self) -> int:
        """The number of tokens that the last token of the longest path sees without a window."""
        longest = 0
        for tree in self._trees:
            ends: list[int] = []  # of each segment: tokens of the path down to its last one
            for segment in tree.segments:
                above = ends[segment.parent] if segment.parent >= 0 else 0
                ends.append(above + segment.stop - segment.start)
            longest = max(longest, *ends)
        return longest

    @cached_property
    def whole(self) -> Sequence[Block]:
        """The blocks for kernels that keep no scores: long segments are not split, and the tokens above them are a
        separate part."""
        blocks = attention_blocks(self._trees, block_tokens=self._block_tokens, splits=False)
        return [block.to(self._device) for block in blocks]

    @cached_property
    def _split(self) -> Sequence[Block]:
        return attention_blocks(self._trees, block_tokens=self._block_tokens)

    def within(self, window: int | None) -> Sequence[Block]:
        """The blocks in which each token sees only the last `window` tokens of its path, itself
        included; None: the whole path."""
        if window not in self._of_window:
            blocks = self._split if window is None else [b.within(window) for b in self._split]
            self._of_window[window] = [block.to(self._device) for block in blocks]
        return self._of_window[window]


def attention_blocks(
    trees: Sequence[Tree], *, block_tokens: int = BLOCK_TOKENS, splits: bool = True
) -> list[Block]:
    """The blocks of a row that holds `trees` one after another.

    A segment with more than `block_tokens` is several blocks, or with `splits=False` one without a mask.
    """
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
                block = Block(start, stop, above, start, _hidden(tree, index))
                is_long = not splits and (stop - start) * block.num_above > block_tokens**2
                blocks.append(replace(block, in_parts=is_long))
                continue
            covered = segment.stop
            if not splits:
                start = offset + segment.start
                blocks.append(Block(start, offset + covered, above, start, None, in_parts=True))
                continue
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
    """Mask of the keys that each query in the subtree of segment `root` does not see."""
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
