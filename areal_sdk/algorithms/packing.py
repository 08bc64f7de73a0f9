"""Lays trajectories out in rows so that a common prefix is computed once.

The trajectories of a group form a tree. The prompt is the root, and siblings branch where their tokens
first differ. A tree is stored depth first, so the descendants of a segment follow right after it:

    prompt | branch A: AAAA | branch B: BB | B1: bbbbb | B2: bb
                              `------ subtree of B -----------'

A token attends to the segments above its own, and to its own segment up to itself. Its position is its
distance from the start of its trajectory. So the logits at a node are those of every trajectory that
passes through the node. Only computation is shared: each trained token of each trajectory keeps its
own loss term, even if several loss terms use the logits of one node.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from areal_sdk.algorithms.examples import Ints

WORTH_SPLITTING = 0.75
"""A tree is too large to keep whole only if its halves are at most this part of it."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of tokens that the same trajectories pass through; offsets count from the tree's start."""

    start: int
    stop: int
    subtree_stop: int
    """Its descendants are `[stop, subtree_stop)`."""
    parent: int
    """Index of the segment it continues; -1 for the root."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Trajectories that share prefixes, as one run of tokens.

    All ranks lay out the trees of all ranks, so the arrays are made only where they are read.
    """

    segments: tuple[Segment, ...]
    members: tuple[int, ...]
    """Which of the given sequences it holds."""
    runs: tuple[Ints, ...] = field(repr=False)
    """The tokens of each segment."""
    paths: tuple[tuple[int, ...], ...]
    """For each member, the segments that it passes through."""

    def __len__(self) -> int:
        return self.segments[0].subtree_stop

    @property
    def tokens(self) -> Ints:
        return np.concatenate(self.runs)

    @property
    def positions(self) -> Ints:
        ends: list[int] = []
        found = []
        for segment in self.segments:
            start = 0 if segment.parent < 0 else ends[segment.parent]
            ends.append(start + segment.stop - segment.start)
            found.append(np.arange(start, ends[-1]))
        return np.concatenate(found)

    @property
    def node_of_token(self) -> tuple[Ints, ...]:
        """For each member, the tree offset of each of its tokens."""
        nodes = [np.arange(segment.start, segment.stop) for segment in self.segments]
        return tuple(np.concatenate([nodes[index] for index in path]) for path in self.paths)


def build_trees(sequences: Sequence[Ints], *, max_tokens: int, share: bool = True) -> list[Tree]:
    """Trees of about `max_tokens` at most that hold every sequence once.

    A larger tree is split, but not where that would mostly repeat what its sequences share: then,
    as with a single sequence that is longer, it stays too large.
    """
    inputs = dict(enumerate(sequences))
    if not share:
        return [_grow([index], inputs) for index in inputs]
    # As big-endian bytes, sequences sort like lists of their tokens, which are never negative.
    order = sorted(inputs, key=lambda index: (inputs[index].astype(">i4").tobytes(), index))
    trees: list[Tree] = []
    pending = [_grow(same, inputs) for _, same in groupby(order, key=lambda i: inputs[i][0])]
    while pending:
        tree = pending.pop(0)
        halves = _halves(tree, inputs) if len(tree) > max_tokens else ()
        if halves and max(map(len, halves)) <= WORTH_SPLITTING * len(tree):
            pending[:0] = halves
        else:
            trees.append(tree)
    return trees


def plan_rows(
    sequences: Sequence[Ints], *, max_tokens: int, num_ranks: int = 1, share: bool = True
) -> list[list[list[Tree]]]:
    """For each rank, its rows: lists of trees that are computed together.

    Ranks get about equal shares, as far as splitting trees does not cost more than it brings; some
    may get nothing when there is little to do.
    """
    trees = build_trees(sequences, max_tokens=max_tokens, share=share)
    trees = _balance(trees, dict(enumerate(sequences)), num_ranks)
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


def _balance(trees: list[Tree], inputs: Mapping[int, Ints], num_ranks: int) -> list[Tree]:
    """Split the largest tree for as long as that gives the busiest rank less to do."""

    def busiest(candidates: Sequence[Tree]) -> int:
        sizes = [len(tree) for tree in candidates]
        return max(sum(sizes[i] for i in part) for part in split_evenly(sizes, num_ranks))

    while num_ranks > 1 and trees:
        largest = max(range(len(trees)), key=lambda i: len(trees[i]))
        candidates = [*trees[:largest], *_halves(trees[largest], inputs), *trees[largest + 1 :]]
        if busiest(candidates) >= busiest(trees):
            break
        trees = candidates
    return trees


def _halves(tree: Tree, inputs: Mapping[int, Ints]) -> tuple[Tree, ...]:
    """Two trees with half of the members each; the tree itself if it has but one."""
    if len(tree.members) == 1:
        return (tree,)
    # Neighbours in lexicographic order share the longest prefixes, so splitting there loses least.
    half = len(tree.members) // 2
    return _grow(tree.members[:half], inputs), _grow(tree.members[half:], inputs)


def _grow(members: Iterable[int], inputs: Mapping[int, Ints]) -> Tree:
    """The tree of `members`, which are in lexicographic order and begin with the same token."""
    members = tuple(members)
    segments: list[Segment] = []
    runs: list[Ints] = []
    paths: dict[int, list[int]] = {member: [] for member in members}
    size = 0

    def grow(alive: Sequence[int], depth: int, parent: int) -> None:
        nonlocal size
        first, last = inputs[alive[0]], inputs[alive[-1]]
        # In sorted order, what the first and the last have in common all have in common.
        stop = depth + _common_length(first[depth:], last[depth:])
        index = len(segments)
        for member in alive:
            paths[member].append(index)
        runs.append(first[depth:stop])
        segments.append(Segment(size, size + stop - depth, -1, parent))
        size += stop - depth
        longer = [member for member in alive if len(inputs[member]) > stop]
        while longer:
            token = inputs[longer[0]][stop]
            count = next(
                (i for i, member in enumerate(longer) if inputs[member][stop] != token), len(longer)
            )
            grow(longer[:count], stop, index)
            longer = longer[count:]
        opened = segments[index]
        segments[index] = Segment(opened.start, opened.stop, size, parent)

    grow(members, 0, -1)
    return Tree(tuple(segments), members, tuple(runs), tuple(tuple(paths[m]) for m in members))


def _common_length(one: Ints, other: Ints) -> int:
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length
