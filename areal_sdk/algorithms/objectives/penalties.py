"""Penalties in the loss of each term: distance to a reference, lost entropy."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from areal_sdk.algorithms.needs import Coverage, Needs
from areal_sdk.algorithms.objectives.terms import PolicyTerms, given, masked
from areal_sdk.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


class KL(StrEnum):
    """Estimates of KL(q || reference) from tokens, with d = log q - log reference.

    Names and variances: Schulman 2020, Approximating KL Divergence. The tokens were sampled by b, not by q, so each
    estimate is good only while samples are nearly fresh. The reference is held fixed.
    """

    K1 = "k1"
    """d: unbiased as a number. As a loss its expected gradient is zero: use it in rewards."""
    K2 = "k2"
    """d^2 / 2: as a loss it has the gradient of the KL divergence."""
    K3 = "k3"
    """exp(-d) - 1 + d: never negative, little noise, and unbiased as a number. Below d = -3 it is a straight
    line: at d = -10 the slope of the curve is -22,000, and one unlikely token would outweigh all other terms of a step."""


_STRAIGHT = 3.0
"""Value of -d beyond which k3 is a straight line. The slope of the line, 19 times that of k1, is the steepest. At d = -3
a token is 20 times less likely than under the reference."""


def kl_estimate(difference_T: "Tensor", kind: KL) -> "Tensor":
    """The estimate of the KL by each token, from its logprob minus that of the reference.

    >>> import torch
    >>> d = torch.tensor([0.0, 1.0])
    >>> kl_estimate(d, KL.K1), kl_estimate(d, KL.K2), kl_estimate(d, KL.K3)
    (tensor([0., 1.]), tensor([0.0000, 0.5000]), tensor([0.0000, 0.3679]))
    """
    if kind is KL.K1:
        return difference_T
    if kind is KL.K2:
        return difference_T.square() / 2.0
    curved_T = difference_T.clamp(min=-_STRAIGHT)
    straight_T = (curved_T - difference_T) * math.expm1(_STRAIGHT)
    return (-curved_T).expm1() + curved_T + straight_T  # exp(-d) - 1 would lose all digits near 0


class Penalty(Protocol):
    @property
    def needs(self) -> Needs: ...

    def __call__(self, terms: PolicyTerms) -> "Tensor":
        """The penalty to add to the loss of each term; finite where masked."""


@dataclass(frozen=True, slots=True)
class ReferenceKL:
    """Holds the policy near the checkpoint that the run began with."""

    coefficient: float
    kind: KL = KL.K3
    needs = Needs(reference=True, coverage=Coverage.ALL)

    def __post_init__(self) -> None:
        object.__setattr__(self, "kind", KL(self.kind))
        if self.coefficient <= 0:
            raise ConfigError(
                f"KL coefficient = {self.coefficient}: give a positive number, or no penalty"
            )

    def __call__(self, terms: PolicyTerms) -> "Tensor":
        reference_T = given(terms.reference_T, "reference")
        difference_T = masked(terms.current_T - reference_T, terms.mask_T)
        return self.coefficient * kl_estimate(difference_T, self.kind)


@dataclass(frozen=True, slots=True)
class EntropyBonus:
    """Rewards distributions that keep several tokens likely."""

    coefficient: float
    needs = Needs(entropy=True, coverage=Coverage.ALL)

    def __post_init__(self) -> None:
        if self.coefficient <= 0:
            raise ConfigError(
                f"entropy coefficient = {self.coefficient}: give a positive number, or no bonus"
            )

    def __call__(self, terms: PolicyTerms) -> "Tensor":
        return -self.coefficient * masked(given(terms.entropies_T, "entropy"), terms.mask_T)
