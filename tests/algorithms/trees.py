"""Trees of plain lists of tokens, and what is read off them."""

from collections.abc import Iterable, Sequence

import numpy as np

from areal_sdk.algorithms.examples import Ints
from areal_sdk.algorithms.packing import Tree, build_trees
from areal_sdk.trajectory import Branch


def trees_of(
    sequences: Iterable[Sequence[int] | Ints], *, max_tokens: int = 10_000, share: bool = True
) -> list[Tree]:
    return build_trees([Branch(s) for s in sequences], max_tokens=max_tokens, share=share)


def paths(tree: Tree) -> list[Ints]:
    """The tree offset of each token of each member."""
    found = []
    for number, end in enumerate(tree.ends):
        segment = tree.segments[end]
        length = tree.depths[end] + segment.stop - segment.start
        found.append(tree.nodes(number, np.arange(length)))
    return found
