"""The first noun with tensors: a row of trees and the loss terms that are read off it.

Shapes: N tokens of the row, R nodes whose logits are needed, T loss terms (trained tokens).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from areal_sdk.algorithms.examples import Example
from areal_sdk.algorithms.packing import Segment, Tree


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch."""

    trees: tuple[Tree, ...]
    tokens_N: Tensor
    positions_N: Tensor
    nodes_R: Tensor
    """Offsets into the row: each (node, temperature) whose logits some term needs, once."""
    temperatures_R: Tensor
    rows_T: Tensor
    """Index of the distribution, among R, that predicts the term's token."""
    targets_T: Tensor
    advantages_T: Tensor
    behaviour_T: Tensor
    """Logprob under the policy that sampled the token."""
    lags_T: Tensor
    """Versions between the sampler and the start of this step."""
    sequences_T: Tensor
    """Index of the trajectory, in the batch, to which the term belongs."""
    groups_T: Tensor
    weights_T: Tensor
    """Weight of each term in the aggregate."""
    boundary_T: Tensor
    """Whether the token is the first or the last of its turn."""
    indices_T: Tensor
    """Index of the term among all terms of its minibatch, over all ranks."""
    mask_T: Tensor
    """Mask of the terms; False on the one term of an empty batch."""
    reference_T: Tensor | None = None
    values_T: Tensor | None = None
    returns_T: Tensor | None = None
    proximal_T: Tensor | None = None
    """Logprob under the weights at the start of the step, once it is known."""
    kept_T: Tensor | None = None
    """Mask of the terms that the objective's screen left; None before it has looked."""

    def with_proximal(self, proximal_T: Tensor) -> "Batch":
        return replace(self, proximal_T=proximal_T)


def make_batch(
    trees: Sequence[Tree],
    examples: Sequence[Example],
    *,
    version: int,
    device: torch.device | str = "cpu",
) -> Batch:
    """The batch of `trees`, whose members index into `examples`, all those of its minibatch."""
    starts = np.cumsum([0, *(len(example.targets_T) for example in examples)])
    members = [examples[member] for tree in trees for member in tree.members]
    counts = [len(example.targets_T) for example in members]
    offsets = np.cumsum([0, *map(len, trees)])[:-1]
    nodes = np.concatenate(
        [
            offset + tree.nodes(number, examples[member].targets_T - 1)
            for offset, tree in zip(offsets, trees, strict=True)
            for number, member in enumerate(tree.members)
        ]
    )
    temperatures = np.concatenate([example.temperatures_T for example in members])
    pairs = np.stack([nodes, temperatures.astype(np.float64)])
    distinct, rows = np.unique(pairs, axis=1, return_inverse=True)

    def tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device=device, dtype=dtype)

    def joined(name: str, dtype: torch.dtype = torch.float32) -> Tensor:
        return tensor(np.concatenate([getattr(example, name) for example in members]), dtype)

    def joined_if_known(name: str) -> Tensor | None:
        return None if getattr(members[0], name) is None else joined(name)

    def repeated(values: Sequence[float], dtype: torch.dtype) -> Tensor:
        return tensor(np.repeat(np.asarray(values), counts), dtype)

    numbers = [member for tree in trees for member in tree.members]
    return Batch(
        trees=tuple(trees),
        tokens_N=tensor(np.concatenate([tree.tokens for tree in trees]), torch.int64),
        positions_N=tensor(np.concatenate([tree.positions for tree in trees]), torch.int64),
        nodes_R=tensor(distinct[0], torch.int64),
        temperatures_R=tensor(distinct[1], torch.float32),
        rows_T=tensor(rows.reshape(-1), torch.int64),
        targets_T=tensor(
            np.concatenate([example.target_tokens for example in members]), torch.int64
        ),
        advantages_T=joined("advantages_T"),
        behaviour_T=joined("logprobs_T"),
        lags_T=version - joined("versions_T"),
        sequences_T=repeated(range(len(members)), torch.int64),
        groups_T=repeated([example.group for example in members], torch.int64),
        weights_T=repeated([example.weight for example in members], torch.float32),
        boundary_T=joined("boundary_T", torch.bool),
        indices_T=tensor(
            np.concatenate([np.arange(starts[n], starts[n + 1]) for n in numbers]), torch.int64
        ),
        mask_T=torch.ones(sum(counts), dtype=torch.bool, device=device),
        reference_T=joined_if_known("reference_T"),
        values_T=joined_if_known("values_T"),
        returns_T=joined_if_known("returns_T"),
    )


def empty_batch(like: Example, *, device: torch.device | str = "cpu") -> Batch:
    """A batch that trains nothing, for a rank that has run out of work.

    Every rank must take part in the same collectives, so this rank does the same forward and backward as the others.
    Its one term has the same fields as the terms of the batch `like`.
    """
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    tree = Tree((Segment(0, 1, 1, -1),), (0,), (0,), (np.zeros(1, dtype=np.int64),), (0,))
    nothing = torch.zeros(1, device=device)
    return Batch(
        trees=(tree,),
        tokens_N=zero,
        positions_N=zero,
        nodes_R=zero,
        temperatures_R=torch.ones(1, device=device),
        rows_T=zero,
        targets_T=zero,
        advantages_T=nothing,
        behaviour_T=nothing,
        lags_T=nothing,
        sequences_T=zero,
        groups_T=zero,
        weights_T=nothing,
        boundary_T=torch.zeros(1, dtype=torch.bool, device=device),
        indices_T=zero,
        mask_T=torch.zeros(1, dtype=torch.bool, device=device),
        reference_T=None if like.reference_T is None else nothing,
        values_T=None if like.values_T is None else nothing,
        returns_T=None if like.returns_T is None else nothing,
    )
