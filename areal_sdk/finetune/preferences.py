"""Losses of pairs, from the scores of their halves: DPO, and Bradley-Terry for a reward model.

A pair's loss depends on two whole sequences, which may be computed in different micro-batches and on
different ranks. But its gradient is a sum over the sequences, each with one weight:

    loss = -log sigmoid(margin),   d loss / d score = -sigmoid(-margin) d margin / d score

So the trainer scores a batch without a gradient, this module turns the scores into weights in float64,
and the trainer learns the weighted sequences. Micro-batches and ranks change nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PairScores:
    """A number for each half of a pair: the logprob of its answer, or its reward."""

    chosen: float
    rejected: float


@dataclass(frozen=True, slots=True)
class PairLoss:
    loss: float
    margin: float
    """Lead of the chosen half, in the units of the loss. Above 0: the order is right."""
    chosen: float
    """The weight with which the chosen sequence is learnt. A positive weight makes a sequence likelier."""
    rejected: float


def bradley_terry(rewards: PairScores) -> PairLoss:
    """The loss of the Bradley-Terry model: -log sigmoid(r_chosen - r_rejected). The sigmoid is the probability that a
    judge with these rewards prefers the chosen answer.

    >>> bradley_terry(PairScores(0.0, 0.0)).loss == math.log(2.0)
    True
    """
    margin = rewards.chosen - rewards.rejected
    pull = sigmoid(-margin)
    return PairLoss(-log_sigmoid(margin), margin, pull, -pull)


@dataclass(frozen=True, slots=True)
class DPO:
    """The loss of DPO: -log sigmoid(beta [(q_c - ref_c) - (q_r - ref_r)]), where q and ref are the logprobs of the chosen (c)
    and the rejected (r) answer under the policy and under the reference."""

    beta: float
    """Strength of the tie to the reference: a larger one keeps the policy closer."""
    length_normalised: bool = False
    """Whether logprobs are means over an answer's tokens, not sums: a long answer then weighs like a short one."""

    def __call__(
        self, policy: PairScores, reference: PairScores, lengths: tuple[int, int]
    ) -> PairLoss:
        """The loss of one pair. `lengths` are the numbers of tokens of the chosen and of the rejected answer, over which the
        scores are sums."""
        scale_c, scale_r = self._scales(lengths)
        margin = scale_c * (policy.chosen - reference.chosen) - scale_r * (
            policy.rejected - reference.rejected
        )
        pull = sigmoid(-margin)
        return PairLoss(-log_sigmoid(margin), margin, pull * scale_c, -pull * scale_r)

    def _scales(self, lengths: tuple[int, int]) -> tuple[float, float]:
        if not self.length_normalised:
            return self.beta, self.beta
        return self.beta / lengths[0], self.beta / lengths[1]


def summary(losses: Sequence[PairLoss]) -> dict[str, float]:
    """Means over pairs: the loss, the margin, and how often the order is right. A tie counts half.

    >>> summary([PairLoss(0.5, 1.0, 0.1, -0.1), PairLoss(0.7, 0.0, 0.5, -0.5)])
    {'loss': 0.6, 'margin': 0.5, 'accuracy': 0.75}
    """
    count = len(losses)
    right = sum(0.5 * (pair.margin >= 0.0) + 0.5 * (pair.margin > 0.0) for pair in losses)
    return {
        "loss": math.fsum(pair.loss for pair in losses) / count,
        "margin": math.fsum(pair.margin for pair in losses) / count,
        "accuracy": right / count,
    }


def sigmoid(x: float) -> float:
    """1 / (1 + exp(-x)), for numbers of any size.

    >>> sigmoid(0.0), sigmoid(-1e9), sigmoid(1e9)
    (0.5, 0.0, 1.0)
    """
    if x >= 0.0:
        return 1.0 / (1.0 + math.exp(-x))
    grown = math.exp(x)
    return grown / (1.0 + grown)


def log_sigmoid(x: float) -> float:
    """The logarithm of the logistic function, without overflow.

    >>> log_sigmoid(-1e9), log_sigmoid(1e9)
    (-1000000000.0, 0.0)
    """
    return min(x, 0.0) - math.log1p(math.exp(-abs(x)))
