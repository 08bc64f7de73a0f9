"""The policy objective: -w * gain(ratio, advantage) + penalties, one loss a term; the ratio by token or by trajectory."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from areal_sdk.algorithms.needs import Coverage, Needs
from areal_sdk.algorithms.objectives.terms import PolicyTerms, masked, sequence_means

if TYPE_CHECKING:
    from torch import Tensor
import math
from dataclasses import field
from typing import TYPE_CHECKING

from areal_sdk.algorithms.needs import needs_of
from areal_sdk.algorithms.objectives.off_policy import OffPolicyWeight, SecondMoment
from areal_sdk.algorithms.objectives.penalties import KL, Penalty, kl_estimate
from areal_sdk.algorithms.objectives.regions import TrustRegion
from areal_sdk.algorithms.objectives.terms import Loss

if TYPE_CHECKING:
    from torch import Tensor


class Ratio(Protocol):
    def __call__(self, terms: PolicyTerms) -> "tuple[Tensor, Tensor]":
        """The log ratio of each term, 0 where masked, and the advantage of each term."""


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


@dataclass(frozen=True, slots=True)
class Surrogate:
    """Decoupled PPO and its relatives: the ratio q / p is held in a region, p / b is a weight.

    -(p / b) min((q / p) A, clip(q / p) A), the decoupled objective of Hilton et al. 2021 (arXiv 2110.00641) as AReaL uses
    it (arXiv 2505.24298). b, p and A are held fixed; q alone has a gradient. Where p is b, the weight is 1 and this is PPO as
    the paper has it.
    """

    region: TrustRegion
    weight: OffPolicyWeight
    ratio: Ratio = field(default_factory=TokenRatio)
    screen: SecondMoment | None = None
    penalties: tuple[Penalty, ...] = ()

    @property
    def needs(self) -> Needs:
        parts = (self.ratio, self.region, self.weight, self.screen, *self.penalties)
        return needs_of(*parts)

    def keep(self, log_weights_T: "Tensor") -> "Tensor":
        assert self.screen is not None, "`needs` asks for the minibatch only with a screen"
        return self.screen.keep(log_weights_T)

    def __call__(self, terms: PolicyTerms) -> Loss:
        mask_T = terms.mask_T
        w_T, log_w_T = self.weight(terms)
        log_ratio_T, advantages_T = self.ratio(terms)
        ratio_T = log_ratio_T.exp()
        gain = self.region(terms, ratio_T, advantages_T)
        gained_T = mask_T if terms.kept_T is None else mask_T & terms.kept_T
        w_T = masked(w_T, gained_T)  # a screened term weighs nothing
        loss_T = -masked(w_T * gain.gain_T, gained_T)
        for penalty in self.penalties:
            loss_T = loss_T + masked(penalty(terms), mask_T)
        away_T = masked(terms.current_T - terms.behaviour_T, mask_T).detach()
        moved_T = log_ratio_T.detach()
        low_T, high_T = mask_T & gain.low_T, mask_T & gain.high_T
        bounded_T = mask_T & (log_w_T > math.log(self.weight.maximum))
        totals = {
            "clip_fraction": (low_T | high_T).sum(),
            "clip_low": low_T.sum(),
            "clip_high": high_T.sum(),
            "ratio": masked(ratio_T.detach(), mask_T).sum(),
            "weight": w_T.sum(),
            "weight_square": w_T.square().sum(),
            "weight_bounded": bounded_T.sum(),
            # E_b[log b - log q], from samples of b: (r - 1) - log r, never negative.
            "kl_behaviour": kl_estimate(-away_T, KL.K3).sum(),
            # E_p[log p - log q], likewise.
            "kl_proximal": kl_estimate(-moved_T, KL.K3).sum(),
            **{name: masked(values_T, mask_T).sum() for name, values_T in gain.totals.items()},
        }
        if terms.kept_T is not None:
            totals["screened_out"] = (mask_T & ~terms.kept_T).sum()
        if terms.reference_T is not None:
            left_T = masked(terms.current_T.detach() - terms.reference_T, mask_T)
            totals["kl_reference"] = kl_estimate(left_T, KL.K3).sum()
        maxima = {
            "ratio_max": masked(ratio_T.detach(), mask_T).max(),
            "weight_max": masked(log_w_T.exp(), mask_T).max(),
        }
        of_terms = {
            "log_ratio": moved_T,
            "log_weight": log_w_T,
            "weight": w_T,
            "clipped_low": low_T,
            "clipped_high": high_T,
            "bounded": bounded_T,
        }
        if (dual_T := gain.totals.get("clip_dual")) is not None:
            of_terms["clipped_dual"] = dual_T
        return Loss(loss_T, totals, maxima, of_terms)
