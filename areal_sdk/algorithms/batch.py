"""The first type with tensors, `Batch`: a row of trees, and the loss terms that are read off the row.

Shapes: N tokens of the row, R nodes whose logits are needed, T loss terms (trained tokens).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from areal_sdk.algorithms.examples import Example
from areal_sdk.algorithms.packing import Segment, Tree

EVIDENCE = ("reference_T", "values_T", "returns_T")
"""The fields that not every algorithm asks for."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch."""

    trees: tuple[Tree, ...]
    tokens_N: Tensor
    positions_N: Tensor
    nodes_R: Tensor
    """Offsets into the row of the nodes whose logits a term needs, one for each pair of node and temperature."""
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
    """Mask of the terms that the objective's screen kept; None before the screen has run."""

    @property
    def is_empty(self) -> bool:
        """Whether `empty_batch` made this batch. The trees tell it; reading `mask_T` would wait for the device."""
        return not self.trees[0].members

    def with_proximal(self, proximal_T: Tensor) -> "Batch":
        return replace(self, proximal_T=proximal_T)


def make_batch(
    trees: Sequence[Tree],
    examples: Sequence[Example],
    *,
    version: int,
    device: torch.device | str = "cpu",
) -> Batch:
    """The batch of `trees`. Their members are indices into `examples`, which are all examples of the minibatch."""
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

    def joined(name: str, dtype: type[np.generic] = np.float32) -> np.ndarray:
        return np.concatenate([getattr(example, name) for example in members]).astype(dtype)

    def repeated(values: Sequence[float], dtype: type[np.generic]) -> np.ndarray:
        return np.repeat(np.asarray(values), counts).astype(dtype)

    numbers = [member for tree in trees for member in tree.members]
    arrays = {
        "tokens_N": np.concatenate([tree.tokens for tree in trees]).astype(np.int64),
        "positions_N": np.concatenate([tree.positions for tree in trees]).astype(np.int64),
        "nodes_R": distinct[0].astype(np.int64),
        "temperatures_R": distinct[1].astype(np.float32),
        "rows_T": rows.reshape(-1).astype(np.int64),
        "targets_T": joined("target_tokens", np.int64),
        "advantages_T": joined("advantages_T"),
        "behaviour_T": joined("logprobs_T"),
        "lags_T": np.float32(version) - joined("versions_T"),
        "sequences_T": repeated(range(len(members)), np.int64),
        "groups_T": repeated([example.group for example in members], np.int64),
        "weights_T": repeated([example.weight for example in members], np.float32),
        "boundary_T": joined("boundary_T", np.bool_),
        "indices_T": np.concatenate([np.arange(starts[n], starts[n + 1]) for n in numbers]),
        "mask_T": np.ones(sum(counts), np.bool_),
        **{name: joined(name) for name in EVIDENCE if getattr(members[0], name) is not None},
    }
    return Batch(trees=tuple(trees), **sent(arrays, device))


def sent(arrays: Mapping[str, np.ndarray], device: torch.device | str) -> dict[str, Tensor]:
    """Tensors of `arrays` on the device, by one copy that the host does not wait for."""
    ordered = sorted(arrays.items(), key=lambda item: -item[1].itemsize)  # so that all are aligned
    whole = np.concatenate([array.reshape(-1).view(np.uint8) for _, array in ordered])
    there = torch.from_numpy(whole).to(device, non_blocking=True)
    pieces = zip(ordered, there.split_with_sizes([a.nbytes for _, a in ordered]), strict=True)
    return {n: piece.view(torch.from_numpy(a).dtype).view(a.shape) for (n, a), piece in pieces}


def empty_batch(like: Example, *, device: torch.device | str = "cpu") -> Batch:
    """A batch that trains nothing, for a rank that has run out of work.

    Every rank must take part in the same collectives, so this rank does the same forward and backward as the others.
    Its one term has the same fields as the terms of the batch `like`.
    """
    numbers = [name for name in EVIDENCE if getattr(like, name) is not None]
    numbers += ["advantages_T", "behaviour_T", "lags_T", "weights_T"]
    arrays: dict[str, np.ndarray] = dict.fromkeys(numbers, np.zeros(1, np.float32))
    zero = np.zeros(1, np.int64)
    arrays |= dict.fromkeys(("tokens_N", "positions_N", "nodes_R", "rows_T", "targets_T"), zero)
    arrays |= dict.fromkeys(("sequences_T", "groups_T", "indices_T"), zero)
    arrays |= dict.fromkeys(("boundary_T", "mask_T"), np.zeros(1, np.bool_))
    arrays["temperatures_R"] = np.ones(1, np.float32)
    tree = Tree((Segment(0, 1, 1, -1),), (), (), (np.zeros(1, dtype=np.int64),), (0,))
    return Batch(trees=(tree,), **sent(arrays, device))
