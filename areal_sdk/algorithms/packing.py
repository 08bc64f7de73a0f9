"""Lays trajectories out in rows so that a common prefix is computed once.

The trajectories of a group form a tree. The prompt is the root, and siblings branch where their tokens
first differ. A tree is stored depth first, so the descendants of a segment follow right after it:

    prompt | branch A: AAAA | branch B: BB | B1: bbbbb | B2: bb
                              `------ subtree of B -----------'

A token attends to the segments above its own, and to its own segment up to itself. Its position is its distance from
the start of its trajectory. So every trajectory that passes through a node has the same logits at that node, and they
are computed once. Loss terms are not shared: each trained token of each trajectory has a loss term of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from areal_sdk.algorithms.examples import Ints
from areal_sdk.algorithms.prefixes import Sorted, sort_branches
from areal_sdk.trajectory import Branch

WORTH_SPLITTING = 0.75
"""A tree that is too large is split only if each of its halves has at most this share of its tokens."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens that the same trajectories pass through; offsets count from the tree's start."""

    start: int
    stop: int
    subtree_stop: int
    """End of the segment's descendants, which are `[stop, subtree_stop)`."""
    parent: int
    """Index of the segment it continues; -1 for the root."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Branches that share prefixes, as one run of tokens.

    All ranks lay out the trees of all ranks, so the arrays are made only where they are read.
    """

    segments: tuple[Segment, ...]
    members: tuple[int, ...]
    """Indices of the given branches that the tree holds."""
    ends: tuple[int, ...]
    """The segment with which each member ends."""
    runs: tuple[Ints, ...] = field(repr=False)
    """The tokens of each segment."""
    depths: tuple[int, ...] = field(repr=False)
    """The position of each segment's first token."""
    place: int = 0
    """Place of the first member in the order of all branches."""

    def __len__(self) -> int:
        return self.segments[0].subtree_stop

    @property
    def tokens(self) -> Ints:
        return np.concatenate(self.runs)

    @property
    def positions(self) -> Ints:
        pairs = zip(self.segments, self.depths, strict=True)
        return np.concatenate([np.arange(s.stop - s.start) + depth for s, depth in pairs])

    def nodes(self, number: int, positions: Ints) -> Ints:
        """The offsets in the tree of the tokens at `positions` of member `number`."""
        depths, path = self.depths, [self.ends[number]]
        first = int(positions.min(initial=depths[path[0]]))
        while depths[path[-1]] > first:
            path.append(self.segments[path[-1]].parent)
        starts = np.array([depths[index] for index in reversed(path)])
        offsets = np.array([self.segments[index].start for index in reversed(path)]) - starts
        found: Ints = positions + offsets[np.searchsorted(starts, positions, side="right") - 1]
        return found


def build_trees(branches: Sequence[Branch], *, max_tokens: int, share: bool = True) -> list[Tree]:
    """Trees of about `max_tokens` at most that hold every branch once.

    A larger tree is split, unless its parts would mostly repeat what its branches share: then it stays too large. A
    single branch of more than `max_tokens` stays whole too.
    """
    return _build(sort_branches(branches, share=share), max_tokens=max_tokens)


def _build(order: Sorted, *, max_tokens: int) -> list[Tree]:
    trees: list[Tree] = []
    pending = [_grow(order, first, last) for first, last in reversed(order.roots)]
    while pending:
        tree = pending.pop()
        halves = _halves(tree, order) if len(tree) > max_tokens else ()
        if halves and max(map(len, halves)) <= WORTH_SPLITTING * len(tree):
            pending += reversed(halves)
        else:
            trees.append(tree)
    return trees


def plan_rows(
    branches: Sequence[Branch], *, max_tokens: int, num_ranks: int = 1, share: bool = True
) -> list[list[list[Tree]]]:
    """The rows of each rank: lists of trees that are computed together.

    Ranks get about equal shares, as far as splitting trees does not cost more than it saves. Some ranks may get
    nothing if there is little to do.
    """
    order = sort_branches(branches, share=share)
    trees = _balance(_build(order, max_tokens=max_tokens), order, num_ranks)
    plan = []
    for of_rank in split_evenly([len(tree) for tree in trees], num_ranks):
        own = [trees[i] for i in of_rank]
        plan.append([[own[i] for i in row] for row in pack_trees(own, max_tokens=max_tokens)])
    return plan


def pack_trees(trees: Sequence[Tree], *, max_tokens: int) -> list[list[int]]:
    """Rows of tree indices with at most `max_tokens` each (a longer tree has a row of its own).

    First fit, longest first.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for index in sorted(range(len(trees)), key=lambda i: (-len(trees[i]), i)):
        size = len(trees[index])
        row = next((r for r, free in enumerate(room) if size <= free), None)
        if row is None:
            rows.append([index])
            room.append(max_tokens - size)
        else:
            rows[row].append(index)
            room[row] -= size
    return rows


def split_evenly(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """`parts` lists of indices whose sizes add up about equally; some may be empty.

    >>> split_evenly([5, 1, 1, 4, 1], 2)
    [[0, 2], [1, 3, 4]]
    """
    chosen: list[list[int]] = [[] for _ in range(parts)]
    totals = [0] * parts
    for index in sorted(range(len(sizes)), key=lambda i: (-sizes[i], i)):
        least = totals.index(min(totals))
        chosen[least].append(index)
        totals[least] += sizes[index]
    return [sorted(part) for part in chosen]


def _balance(trees: list[Tree], order: Sorted, num_ranks: int) -> list[Tree]:
    """Split the largest tree for as long as that gives the busiest rank less to do."""

    def busiest(candidates: Sequence[Tree]) -> int:
        sizes = [len(tree) for tree in candidates]
        return max(sum(sizes[i] for i in part) for part in split_evenly(sizes, num_ranks))

    while num_ranks > 1 and trees:
        largest = max(range(len(trees)), key=lambda i: len(trees[i]))
        candidates = [*trees[:largest], *_halves(trees[largest], order), *trees[largest + 1 :]]
        if busiest(candidates) >= busiest(trees):
            break
        trees = candidates
    return trees


def _halves(tree: Tree, order: Sorted) -> tuple[Tree, ...]:
    """Two trees with half of the members each; the tree itself if it has only one member."""
    if len(tree.members) == 1:
        return (tree,)
    # Neighbours in lexicographic order share the longest prefixes, so splitting there loses least.
    middle = tree.place + len(tree.members) // 2
    last = tree.place + len(tree.members)
    return _grow(order, tree.place, middle), _grow(order, middle, last)


def _grow(order: Sorted, first: int, last: int) -> Tree:
    """The tree of the branches `[first, last)` in lexicographic order, which begin alike."""
    starts: list[int] = []
    stops: list[int] = []
    parents: list[int] = []
    depths: list[int] = []
    runs: list[Ints] = []
    ends: list[int] = []
    size = 0
    pending = [(first, last, 0, -1)]
    while pending:
        low, high, depth, parent = pending.pop()
        # In sorted order, what neighbours have in common all have in common.
        stop = min(order.lengths[low], int(order.common[low + 1 : high].min(initial=order.MOST)))
        index = len(runs)
        runs.append(order.branch(low).slice(depth, stop))
        starts.append(size)
        size += stop - depth
        stops.append(size)
        parents.append(parent)
        depths.append(depth)
        while low < high and order.lengths[low] == stop:
            ends.append(index)
            low += 1
        cuts = np.flatnonzero(order.common[low + 1 : high] == stop) + low + 1
        below = [low, *cuts.tolist(), high] if low < high else []
        pending += [(a, b, stop, index) for a, b in pairwise(below)][::-1]
    subtree_stops = list(stops)
    for index in range(len(parents) - 1, 0, -1):
        above = parents[index]
        subtree_stops[above] = max(subtree_stops[above], subtree_stops[index])
    segments = zip(starts, stops, subtree_stops, parents, strict=True)
    return Tree(
        tuple(Segment(*segment) for segment in segments),
        tuple(order.indices[first:last]),
        tuple(ends),
        tuple(runs),
        tuple(depths),
        first,
    )
