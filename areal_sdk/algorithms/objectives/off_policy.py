"""Weights that correct for the policy that sampled a token: w = p / b, detached."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from areal_sdk.algorithms.needs import Coverage, Needs
from areal_sdk.algorithms.objectives.terms import PolicyTerms, masked, sequence_means
from areal_sdk.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


class Level(StrEnum):
    TOKEN = "token"
    SEQUENCE = "sequence"
    """The geometric mean over the trajectory: one weight for all its tokens."""


class Beyond(StrEnum):
    """The treatment of a weight beyond the maximum."""

    CLAMP = "clamp"
    """Replace the weight by the maximum. This is biased, but every token teaches."""
    MASK = "mask"
    """Replace the weight by zero, so that tokens that were too unlikely for the sampler are left out."""


class OffPolicyWeight(Protocol):
    def __call__(self, terms: PolicyTerms) -> "tuple[Tensor, Tensor]":
        """The weight of each term, without a gradient, and log w before any bound (0: masked)."""

    @property
    def maximum(self) -> float:
        """The largest weight, perhaps infinite. Terms whose weight would be larger are counted in `weight_bounded`."""


@dataclass(frozen=True, slots=True)
class ImportanceWeight:
    """w = exp(p - b), detached, at most `maximum`.

    The weight makes samples of b speak for p: E_b[w f] = E_p[f]. The bound trades a bias for a finite variance (truncated
    importance sampling; Ionides 2008, and for token streams IMPALA, Espeholt et al. 2018, arXiv 1802.01561). p and b
    are held fixed: the weight has no gradient.

    >>> import torch
    >>> log_w = torch.tensor([0.0, 3.0])
    >>> ImportanceWeight(5.0).bound(log_w), ImportanceWeight(5.0, beyond=Beyond.MASK).bound(log_w)
    (tensor([1., 5.]), tensor([1., 0.]))
    """

    maximum: float
    level: Level = Level.TOKEN
    beyond: Beyond = Beyond.CLAMP

    def __post_init__(self) -> None:
        if not self.maximum > 0:
            raise ConfigError(f"maximum weight = {self.maximum}: give a positive number")

    @property
    def needs(self) -> Needs:
        whole = self.level == Level.SEQUENCE
        return Needs(coverage=Coverage.SEQUENCES if whole else Coverage.ADVANTAGED)

    def __call__(self, terms: PolicyTerms) -> "tuple[Tensor, Tensor]":
        log_w_T = masked(terms.proximal_T - terms.behaviour_T, terms.mask_T).detach()
        if self.level == Level.SEQUENCE:
            log_w_T = masked(sequence_means(log_w_T, terms), terms.mask_T)
        return self.bound(log_w_T), log_w_T

    def bound(self, log_w_T: "Tensor") -> "Tensor":
        w_T = log_w_T.exp()
        if self.beyond == Beyond.MASK:
            return w_T.where(w_T <= self.maximum, 0.0)
        return w_T.clamp(max=self.maximum)


@dataclass(frozen=True, slots=True)
class NoWeight:
    """Every term counts the same, also terms that an older policy sampled."""

    maximum = float("inf")

    def __call__(self, terms: PolicyTerms) -> "tuple[Tensor, Tensor]":
        log_w_T = masked(terms.proximal_T - terms.behaviour_T, terms.mask_T).detach()
        return log_w_T.new_ones(log_w_T.shape), log_w_T


@dataclass(frozen=True, slots=True)
class SecondMoment:
    """M2PO: leaves out the fewest terms after which the mean of (log w)^2 is below `threshold`.

    Zheng et al. 2025, arXiv 2510.01161. The mask is held fixed during the update.

    The mean is over a whole minibatch and all ranks. One term always stays.

    >>> import torch
    >>> SecondMoment(0.1).keep(torch.tensor([0.1, -2.0, 0.2, 1.0]))
    tensor([ True, False,  True, False])
    >>> SecondMoment(0.1).keep(torch.tensor([2.0, -3.0]))
    tensor([ True, False])
    """

    threshold: float
    needs = Needs(minibatch=True, coverage=Coverage.ALL)

    def __post_init__(self) -> None:
        if self.threshold <= 0:
            raise ConfigError(f"second moment threshold = {self.threshold}: give a positive number")

    def keep(self, log_weights_T: "Tensor") -> "Tensor":
        if not len(log_weights_T):
            return log_weights_T.bool()
        squares_T = log_weights_T.double().square()
        ordered_T, order_T = squares_T.sort(stable=True)
        counts_T = ordered_T.new_ones(len(ordered_T)).cumsum(0)
        below_T = ordered_T.cumsum(0) / counts_T < self.threshold
        number = max(int(below_T.sum()), 1)  # means of ascending squares ascend
        keep_T = log_weights_T.new_zeros(len(order_T)).bool()
        keep_T[order_T[:number]] = True
        return keep_T
