"""Evidence for estimators: logprobs of a frozen reference and values of a critic for every trained token. Each rank
computes its share of the rows without a gradient, and all ranks get all numbers, so that they plan alike. Sums over
whole sequences are gathered in the same way.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from areal_sdk.algorithms.advantages.estimator import PerToken
from areal_sdk.algorithms.batch import Batch
from areal_sdk.algorithms.examples import Example
from areal_sdk.fsdp.step.planning import Minibatch, Planner, gather
from areal_sdk.trajectory import TrajectoryGroup


def score(
    planner: Planner,
    minibatch: Minibatch,
    groups: Sequence[TrajectoryGroup],
    score_of: Callable[[Batch], Tensor],
) -> PerToken:
    """The score of each trained token by `score_of`, per group and trajectory; 0 elsewhere. A collective."""
    with torch.no_grad():
        values = [score_of(batch) for batch in minibatch.batches]
    flat = gather(minibatch, values, planner.ranks).cpu().numpy()
    rows: PerToken = []
    start = 0
    for group in groups:
        rows.append([])
        for t in group.trajectories:
            row = np.zeros(len(t.tokens), dtype=np.float32)
            stop = start + t.num_trained
            row[t.loss_mask] = flat[start:stop]
            rows[-1].append(row)
            start = stop
    return rows


def sequence_scores(
    planner: Planner, examples: Sequence[Example | None], score_of: Callable[[Batch], Tensor]
) -> list[float]:
    """The sum of each sequence's scores by `score_of`, in float64; 0 for a sequence that trains nothing. A collective.

    The batches of all ranks hold every sequence once, whole.
    """
    present = [example for example in examples if example is not None]
    if not present:
        return [0.0] * len(examples)
    ranks = planner.ranks
    sums = torch.zeros(len(present), dtype=torch.float64, device=ranks.device)
    batches = planner.minibatch(present, divisor=1.0, version=0).batches
    for batch, values_T in zip(batches, [score_of(batch) for batch in batches], strict=True):
        if not batch.is_empty:
            members = torch.tensor([member for tree in batch.trees for member in tree.members])
            of_term = members.to(ranks.device, non_blocking=True)[batch.sequences_T]
            sums.index_add_(0, of_term, values_T.double())
    totals = iter(ranks.sum_tensor(sums).tolist())
    return [0.0 if example is None else float(next(totals)) for example in examples]
