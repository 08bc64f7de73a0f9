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
    """Which of the R distributions predicts the term's token."""
    targets_T: Tensor
    advantages_T: Tensor
    behaviour_T: Tensor
    """Logprob under the policy that sampled the token."""
    lags_T: Tensor
    """Versions between the sampler and the start of this step."""
    sequences_T: Tensor
    """Which trajectory of the batch the term belongs to."""
    mask_T: Tensor
    """False on the one term of an empty batch."""
    proximal_T: Tensor | None = None
    """Logprob under the weights at the start of the step, once it is known."""

    def with_proximal(self, proximal_T: Tensor) -> "Batch":
        return replace(self, proximal_T=proximal_T)


def make_batch(
    trees: Sequence[Tree],
    examples: Sequence[Example],
    *,
    version: int,
    device: torch.device | str = "cpu",
) -> Batch:
    """The batch of `trees`, whose members index into `examples`."""
    nodes, targets, advantages, logprobs, lags, temperatures, sequences = [[] for _ in range(7)]
    offset = 0
    sequence = 0
    for tree in trees:
        for member, path in zip(tree.members, tree.node_of_token, strict=True):
            example = examples[member]
            nodes.append(offset + path[example.targets_T - 1])
            targets.append(example.tokens[example.targets_T])
            advantages.append(example.advantages_T)
            logprobs.append(example.logprobs_T)
            lags.append(version - example.versions_T)
            temperatures.append(example.temperatures_T)
            sequences.append(np.full(len(example.targets_T), sequence))
            sequence += 1
        offset += len(tree)
    pairs = np.stack([np.concatenate(nodes), np.concatenate(temperatures).astype(np.float64)])
    distinct, rows = np.unique(pairs, axis=1, return_inverse=True)

    def tensor(array: np.ndarray, dtype: torch.dtype) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device=device, dtype=dtype)

    return Batch(
        trees=tuple(trees),
        tokens_N=tensor(np.concatenate([tree.tokens for tree in trees]), torch.int64),
        positions_N=tensor(np.concatenate([tree.positions for tree in trees]), torch.int64),
        nodes_R=tensor(distinct[0], torch.int64),
        temperatures_R=tensor(distinct[1], torch.float32),
        rows_T=tensor(rows.reshape(-1), torch.int64),
        targets_T=tensor(np.concatenate(targets), torch.int64),
        advantages_T=tensor(np.concatenate(advantages), torch.float32),
        behaviour_T=tensor(np.concatenate(logprobs), torch.float32),
        lags_T=tensor(np.concatenate(lags), torch.float32),
        sequences_T=tensor(np.concatenate(sequences), torch.int64),
        mask_T=torch.ones(sum(map(len, targets)), dtype=torch.bool, device=device),
    )


def empty_batch(*, device: torch.device | str = "cpu") -> Batch:
    """A batch that trains nothing, for a rank that has run out of work.

    Every rank must do the same collectives, so it does the same forward and backward as the others.
    """
    zero = torch.zeros(1, dtype=torch.int64, device=device)
    token = np.zeros(1, dtype=np.int64)
    tree = Tree(token, token, (Segment(0, 1, 1, -1),), (0,), (token,))
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
        mask_T=torch.zeros(1, dtype=torch.bool, device=device),
    )
