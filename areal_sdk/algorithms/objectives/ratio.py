"""The distance of the policy from the trust region's centre: by token, or by trajectory."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from areal_sdk.algorithms.needs import Coverage, Needs
from areal_sdk.algorithms.objectives.terms import PolicyTerms, masked, sequence_means

if TYPE_CHECKING:
    from torch import Tensor


class Ratio(Protocol):
    def __call__(self, terms: PolicyTerms) -> "tuple[Tensor, Tensor]":
        """log r of each term, 0 where masked, and the advantages that go with it."""


@dataclass(frozen=True, slots=True)
class TokenRatio:
    """r = q / p of the token itself."""

    def __call__(self, terms: PolicyTerms) -> "tuple[Tensor, Tensor]":
        return masked(terms.current_T - terms.proximal_T, terms.mask_T), terms.advantages_T


@dataclass(frozen=True, slots=True)
class SequenceRatio:
    """GSPO: the geometric mean of the trajectory's ratios, against the mean of its advantages.

    Zheng et al. 2025, arXiv 2507.18071, equation of s_i. p is held fixed; the gradient goes through every q of the mean.

    A trajectory is clipped whole or not at all. Advantages by turn become one for the trajectory.
    """

    needs = Needs(coverage=Coverage.SEQUENCES)

    def __call__(self, terms: PolicyTerms) -> "tuple[Tensor, Tensor]":
        log_ratio_T = sequence_means(terms.current_T - terms.proximal_T, terms)
        advantages_T = sequence_means(terms.advantages_T, terms)
        return masked(log_ratio_T, terms.mask_T), masked(advantages_T, terms.mask_T)


@dataclass(frozen=True, slots=True)
class SequenceTokenRatio:
    """GSPO-token: the value of the trajectory's ratio, the gradient of the token's own.

    Same paper, section on GSPO-token: sg[s_i] q / sg[q].

    Advantages stay those of the tokens: turns keep the credit they were given.
    """

    needs = Needs(coverage=Coverage.SEQUENCES)

    def __call__(self, terms: PolicyTerms) -> "tuple[Tensor, Tensor]":
        own_T = masked(terms.current_T - terms.proximal_T, terms.mask_T)
        mean_T = masked(sequence_means(own_T.detach(), terms), terms.mask_T)
        return mean_T + (own_T - own_T.detach()), terms.advantages_T
