"""Sums over the tokens of whole sequences, which are the same on every rank."""

from collections.abc import Sequence

import torch
from torch import Tensor

from areal_sdk.algorithms.batch import Batch
from areal_sdk.fsdp.collectives import Ranks


def sequence_sums(
    batches: Sequence[Batch], values: Sequence[Tensor], *, count: int, ranks: Ranks
) -> list[float]:
    """The sum of the values of each sequence's terms, for `count` sequences, in float64. A
    collective.

    The batches of all ranks hold every sequence once, whole.
    """
    sums = torch.zeros(count, dtype=torch.float64)
    for batch, values_T in zip(batches, values, strict=True):
        members = torch.tensor([member for tree in batch.trees for member in tree.members])
        kept_T = batch.mask_T
        of_term = members[batch.sequences_T[kept_T].cpu()]
        sums.index_add_(0, of_term, values_T[kept_T].double().cpu())
    whole = ranks.sum({str(index): value for index, value in enumerate(sums.tolist())})
    return list(whole.values())
