"""The record of a step: the numbers of each token that it counts, gathered from all ranks.

Shapes: T loss terms of a micro-batch, C counted tokens of the step, K columns.
"""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from areal_sdk.algorithms.advantages import PerToken
from areal_sdk.algorithms.batch import Batch
from areal_sdk.algorithms.objectives import Loss, PolicyTerms
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.step.optimizer import Applied
from areal_sdk.fsdp.step.planning import Minibatch
from areal_sdk.telemetry.token_log import (
    GATHERED,
    Column,
    CountedGroup,
    CountedMinibatch,
    CountedSequence,
    StepTokens,
    TokenFlag,
    runs_of,
)
from areal_sdk.trajectory import TrajectoryGroup


class StepRecord:
    """The tokens that a step counts, filled up while it computes its loss."""

    def __init__(
        self,
        groups: Sequence[TrajectoryGroup],
        advantages: PerToken,
        version: int,
        ranks: Ranks,
    ) -> None:
        """`groups` and `advantages` are as the step sees them, after shaping."""
        self._groups = groups
        self._advantages = advantages
        self._version = version
        self._ranks = ranks
        self._known: set[str] = set()
        """The columns that the loss of this algorithm gives."""
        count = sum(t.num_trained for group in groups for t in group.trajectories)
        self._values_CK = torch.zeros((count, len(GATHERED)), device=ranks.device)

    def add(
        self,
        minibatch: Minibatch,
        batch: Batch,
        terms: PolicyTerms,
        loss: Loss,
        entropies_T: Tensor,
    ) -> None:
        """Keep the numbers that the loss of a micro-batch gives for its terms."""
        assert minibatch.places_T is not None, "the planner knows the places of a step's terms"
        with torch.no_grad():
            columns = _columns(batch, terms, loss, entropies_T)
            self._known |= columns.keys()
            unknown_T = torch.full_like(terms.behaviour_T, math.nan)
            rows_TK = torch.stack([columns.get(name, unknown_T) for name in GATHERED], dim=1)
            if not batch.is_empty:
                self._values_CK[minibatch.places_T[batch.indices_T]] = rows_TK

    def gathered(
        self, minibatches: Sequence[Minibatch], updates: Sequence[Applied]
    ) -> StepTokens | None:
        """The record of all ranks, on rank 0; None on the others. A collective. `updates` go with `minibatches`."""
        values_CK = self._ranks.sum_tensor(self._values_CK)
        if self._ranks.rank:
            return None
        minibatch_of = {i: n for n, m in enumerate(minibatches) for i in m.groups}
        weights = {key: weight for m in minibatches for key, weight in m.weights.items()}
        return StepTokens(
            version=self._version,
            minibatches=tuple(
                CountedMinibatch(m.divisor, math.isfinite(update.grad_norm), update.share)
                for m, update in zip(minibatches, updates, strict=True)
            ),
            groups=tuple(
                CountedGroup(group.id, group.task_id, minibatch_of.get(i))
                for i, group in enumerate(self._groups)
            ),
            sequences=tuple(
                CountedSequence(
                    t.episode_id,
                    i,
                    t.reward,
                    weights.get((i, t.episode_id), 0.0),
                    runs_of(
                        t.turn_of_token[t.loss_mask],
                        np.flatnonzero(t.loss_mask) + t.branch.num_before,
                    ),
                )
                for i, group in enumerate(self._groups)
                for t in group.trajectories
            ),
            columns=self._with_advantages(values_CK.cpu().numpy()),
        )

    def _with_advantages(self, values_CK: Column) -> dict[str, Column]:
        given = dict(zip(GATHERED, values_CK.T, strict=True))
        flags = given.pop("flags").astype(np.uint8) | np.uint8(TokenFlag.COUNTED)
        has_term = flags & TokenFlag.TERM > 0
        known = {
            name: np.where(has_term, column, np.float32(math.nan))
            for name, column in given.items()
            if name in self._known
        }
        pairs = zip(self._groups, self._advantages, strict=True)
        trained = [
            row[t.loss_mask]
            for group, rows in pairs
            for t, row in zip(group.trajectories, rows, strict=True)
        ]
        advantages = np.concatenate([np.zeros(0, np.float32), *trained])
        return {"flags": flags, "advantage": advantages, **known}


def _columns(
    batch: Batch, terms: PolicyTerms, loss: Loss, entropies_T: Tensor
) -> dict[str, Tensor]:
    """The columns of the record that this algorithm fills, with a number for each term."""
    of_terms = loss.of_terms
    moved_T = terms.current_T - terms.proximal_T
    columns = {
        "flags": _flags(batch, loss),
        "proximal_minus_behaviour": terms.proximal_T - terms.behaviour_T,
        "train_minus_proximal": moved_T,
        "log_ratio": of_terms.get("log_ratio", moved_T),
        "loss": loss.terms_T,
        "entropy": entropies_T,
    }
    if "weight" in of_terms and "log_weight" in of_terms:
        weight_T, log_weight_T = of_terms["weight"], of_terms["log_weight"]
        is_free_T = weight_T == log_weight_T.exp()  # the logarithm of the exponential is rounded
        columns["log_weight"] = log_weight_T.where(is_free_T, weight_T.log())
    if terms.reference_T is not None:
        columns["train_minus_reference"] = terms.current_T - terms.reference_T
    if batch.values_T is not None and batch.returns_T is not None:
        columns |= {"value": batch.values_T, "target": batch.returns_T}
    return columns


def _flags(batch: Batch, loss: Loss) -> Tensor:
    """The flags of each term, as numbers: they travel with the other columns."""
    of_terms = loss.of_terms
    screened_T = torch.zeros_like(batch.mask_T) if batch.kept_T is None else ~batch.kept_T
    masks = {
        TokenFlag.TERM: batch.mask_T,
        TokenFlag.CLIPPED_LOW: of_terms.get("clipped_low"),
        TokenFlag.CLIPPED_HIGH: of_terms.get("clipped_high"),
        TokenFlag.CLIPPED_DUAL: of_terms.get("clipped_dual"),
        TokenFlag.BOUNDED: of_terms.get("bounded"),
        TokenFlag.SCREENED: screened_T,
    }
    if "bounded" in of_terms and "weight" in of_terms:
        weighs_nothing_T = (of_terms["weight"] == 0.0) & ~screened_T
        masks[TokenFlag.MASKED] = of_terms["bounded"] & weighs_nothing_T
    flags_T = torch.zeros_like(batch.behaviour_T)
    for flag, mask_T in masks.items():
        if mask_T is not None:
            flags_T += float(flag) * mask_T
    return flags_T
