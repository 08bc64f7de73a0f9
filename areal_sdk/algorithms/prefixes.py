"""Branches in lexicographic order, and how much neighbours have in common.

A layout needs no more than this. The order is found without assembling whole branches: a branch is compared only from
the place where it leaves the branch that it builds on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import numpy as np

from areal_sdk.algorithms.examples import Ints
from areal_sdk.trajectory import Branch


@dataclass(frozen=True, slots=True)
class Sorted:
    """Branches in lexicographic order, equal ones in the order in which they came."""

    MOST: ClassVar[int] = 2**62

    branches: Sequence[Branch]
    indices: list[int]
    """Indices of the branches in sorted order."""
    lengths: list[int]
    common: Ints
    """Number of tokens that each branch has in common, at its start, with the one in front of it."""

    @property
    def roots(self) -> list[tuple[int, int]]:
        """The places `[first, last)` of branches that begin with the same token."""
        cuts = [*np.flatnonzero(self.common == 0).tolist(), len(self.indices)]
        return list(pairwise(cuts))

    def branch(self, place: int) -> Branch:
        return self.branches[self.indices[place]]


def sort_branches(branches: Sequence[Branch], *, share: bool = True) -> Sorted:
    """The branches in an order in which common beginnings are neighbours. No branch may be empty. Without `share`
    they keep their order, as if nothing were common."""
    if not share:
        indices = list(range(len(branches)))
        return Sorted(branches, indices, [*map(len, branches)], np.zeros(len(branches), np.int64))
    trie = _Trie()
    for branch in branches:
        trie.add(branch)
    for index, branch in enumerate(branches):
        trie.node_at(branch, len(branch)).ends.append((len(branch), index))
    indices, lengths, common = [], [], []
    lowest = 0
    """Lowest depth that the walk met after the latest branch: the next branch shares that many tokens with the latest."""
    pending: list[tuple[_Node, int]] = [(trie.root, 0)]
    while pending:
        node, depth = pending.pop()
        lowest = min(lowest, depth)
        for length, index in sorted(node.ends):
            indices.append(index)
            lengths.append(length)
            common.append(lowest)
            lowest = length
        below = sorted(node.children.items(), reverse=True)
        pending += [(child, node.stop) for _, child in below]
    return Sorted(branches, indices, lengths, np.array(common, dtype=np.int64))


@dataclass(slots=True, eq=False)
class _Node:
    """A run of tokens that begins at depth `start`."""

    run: Ints
    start: int
    parent: "_Node | None" = None
    children: dict[int, "_Node"] = field(default_factory=dict)
    ends: list[tuple[int, int]] = field(default_factory=list)

    @property
    def stop(self) -> int:
        return self.start + len(self.run)


class _Trie:
    """All added branches and the branches that they build on, with each token stored once."""

    def __init__(self) -> None:
        self.root = _Node(np.zeros(0, np.int32), 0)
        self._last: dict[int, _Node] = {}
        """The node in or below which a branch ends, by the id of the branch."""

    def add(self, branch: Branch) -> None:
        chain: list[Branch] = []
        first: Branch | None = branch
        while first is not None and id(first) not in self._last:
            chain.append(first)
            first = first.before
        for later in reversed(chain):
            self._last[id(later)] = self._insert(later)

    def node_at(self, branch: Branch, depth: int) -> _Node:
        """The node that holds the last token of `branch` before `depth`."""
        node = self._last[id(branch)]
        while depth <= node.start and node.parent is not None:
            node = node.parent
        return node

    def _insert(self, branch: Branch) -> _Node:
        depth, rest = branch.num_before, branch.tokens
        node = self.root if branch.before is None else self.node_at(branch.before, depth)
        while len(rest):
            if depth == node.stop:
                child = node.children.get(int(rest[0]))
                if child is None:
                    child = node.children[int(rest[0])] = _Node(rest, depth, node)
                    return child
                node = child
            same = _common_length(node.run[depth - node.start :], rest)
            depth, rest = depth + same, rest[same:]
            if len(rest) and depth < node.stop:
                node = _split(node, depth)
        return node


def _split(node: _Node, depth: int) -> _Node:
    """Split a node in two at `depth`. Returns the new node, which has the tokens before `depth`."""
    assert node.parent is not None, "the root has no tokens"
    upper = _Node(node.run[: depth - node.start], node.start, node.parent, {})
    node.parent.children[int(upper.run[0])] = upper
    node.run, node.start, node.parent = node.run[depth - node.start :], depth, upper
    upper.children[int(node.run[0])] = node
    return upper


def _common_length(one: Ints, other: Ints) -> int:
    length = min(len(one), len(other))
    differ = np.flatnonzero(one[:length] != other[:length])
    return int(differ[0]) if len(differ) else length
