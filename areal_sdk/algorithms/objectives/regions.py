"""Trust regions: their centre, how much a term gains from its ratio, and where the gain stops."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from areal_sdk.algorithms.objectives.terms import PolicyTerms
from areal_sdk.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Gain:
    """The contribution of each term to the objective, before weights and mask."""

    gain_T: "Tensor"
    low_T: "Tensor"
    """Mask of the terms that the region holds back because their ratio is too low already. `high_T` marks those whose
    ratio is too high."""
    high_T: "Tensor"
    totals: "dict[str, Tensor]" = field(default_factory=dict)
    """Further numbers for each term, whose means are reported."""


class TrustRegion(Protocol):
    def __call__(self, terms: PolicyTerms, ratio_T: "Tensor", advantages_T: "Tensor") -> Gain: ...


@dataclass(frozen=True, slots=True)
class Clip:
    """PPO: min(r A, clip(r, 1 - low, 1 + high) A).

    Schulman et al. 2017, arXiv 1707.06347, equation 7. A and p are held fixed; a term beyond the bound has no gradient.
    A `high` above `low`: DAPO's clip-higher, Yu et al. 2025, arXiv 2503.14476.

    With one minibatch a step, p is q itself, r is 1 and nothing is clipped. The update is then bounded by the weight
    and by `trainer.trust_region`.
    """

    low: float
    high: float
    dual: float | None = None
    """Dual clip: where A < 0, the gain is never below `dual` * A, however large the ratio. Ye et al. 2020, arXiv
    1912.09729."""

    def __post_init__(self) -> None:
        if not 0.0 < self.low <= 1.0:
            raise ConfigError(f"clip low = {self.low}: give a number above 0, at most 1")
        if self.high <= 0.0:
            raise ConfigError(f"clip high = {self.high}: give a positive number")
        if self.dual is not None and self.dual <= 1.0:
            raise ConfigError(f"dual clip = {self.dual}: give more than 1, where ratios begin")

    def __call__(self, terms: PolicyTerms, ratio_T: "Tensor", advantages_T: "Tensor") -> Gain:
        bounded_T = ratio_T.clamp(1.0 - self.low, 1.0 + self.high)
        plain_T, clipped_T = ratio_T * advantages_T, bounded_T * advantages_T
        gain_T = plain_T.minimum(clipped_T)
        held_T = clipped_T < plain_T
        totals = {}
        if self.dual is not None:
            floor_T = self.dual * advantages_T
            dual_T = (advantages_T < 0.0) & (gain_T < floor_T)
            gain_T = gain_T.where(~dual_T, floor_T)
            totals["clip_dual"] = dual_T
        return Gain(gain_T, held_T & (ratio_T < 1.0), held_T & (ratio_T > 1.0), totals)


@dataclass(frozen=True, slots=True)
class SoftGate:
    """SAPO: sigmoid(tau (r - 1)) 4 / tau in place of r; the slope at r = 1 is that of r itself.

    Gao et al. 2025, arXiv 2511.20347. A and p are held fixed.

    A smaller tau trusts far ratios longer. Nothing is cut off: far terms fade.
    """

    tau_positive: float
    tau_negative: float
    """Tau of the terms whose advantage is not positive."""

    def __post_init__(self) -> None:
        if self.tau_positive <= 0 or self.tau_negative <= 0:
            raise ConfigError(
                f"tau = {self.tau_positive}, {self.tau_negative}: give positive numbers"
            )

    def __call__(self, terms: PolicyTerms, ratio_T: "Tensor", advantages_T: "Tensor") -> Gain:
        tau_T = ratio_T.new_full(ratio_T.shape, self.tau_negative)
        tau_T = tau_T.masked_fill(advantages_T > 0.0, self.tau_positive)
        gate_T = (tau_T * (ratio_T - 1.0)).sigmoid() * (4.0 / tau_T)
        never_T = ratio_T.isnan()
        slope_T = (gate_T * tau_T / 4.0 * (1.0 - gate_T * tau_T / 4.0) * 4.0).detach()
        return Gain(gate_T * advantages_T, never_T, never_T, {"gate_slope": slope_T})


@dataclass(frozen=True, slots=True)
class TruncatedRatio:
    """CISPO: clip(r, 1 - low, 1 + high), detached, times A log q: every token keeps a gradient.

    MiniMax-M1 2025, arXiv 2506.13585. The ratio itself is held fixed, and only log q has a gradient.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0.0 < self.low <= 1.0:
            raise ConfigError(f"clip low = {self.low}: give a number above 0, at most 1")
        if self.high <= 0.0:
            raise ConfigError(f"clip high = {self.high}: give a positive number")

    def __call__(self, terms: PolicyTerms, ratio_T: "Tensor", advantages_T: "Tensor") -> Gain:
        ratio_T = ratio_T.detach()
        bounded_T = ratio_T.clamp(1.0 - self.low, 1.0 + self.high)
        current_T = terms.current_T.where(terms.mask_T, 0.0)
        low_T, high_T = ratio_T < 1.0 - self.low, ratio_T > 1.0 + self.high
        return Gain(bounded_T * advantages_T * current_T, low_T, high_T)


@dataclass(frozen=True, slots=True)
class Unbounded:
    """r A: the policy gradient with nothing to hold it back."""

    def __call__(self, terms: PolicyTerms, ratio_T: "Tensor", advantages_T: "Tensor") -> Gain:
        never_T = ratio_T.isnan()
        return Gain(ratio_T * advantages_T, never_T, never_T)


class Proximal(StrEnum):
    """The way to find p, the centre of the trust region.

    Papers on a centre that is not the sampler: Hilton et al. 2021, arXiv 2110.00641; for language models AReaL,
    Fu et al. 2025, arXiv 2505.24298. p is held fixed for the whole step.
    """

    RECOMPUTE = "recompute"
    """The policy at the start of the step: one forward over all minibatches but the first."""
    INTERPOLATE = "interpolate"
    """An estimate of the same policy without a forward: a point between b and q."""
    BEHAVIOUR = "behaviour"
    """The sampler itself, as in plain PPO: p = b, so there is no importance weight."""


def interpolate(
    behaviour_T: "Tensor", current_T: "Tensor", lags_T: "Tensor", *, progress: float
) -> "Tensor":
    """p between b and q.detach(), without a forward.

    The behaviour lies `lag` updates before the start of the step and q `progress` updates (a
    fraction: minibatches done / minibatches) after it. If logprobs drift evenly, p lies
    `lag / (lag + progress)` of the way from b to q. At lag 0, p is b; before the first minibatch, p is q.

    >>> import torch
    >>> b, q = torch.tensor([-2.0, -2.0]), torch.tensor([-1.0, -1.0])
    >>> interpolate(b, q, torch.tensor([0.0, 1.0]), progress=0.5)
    tensor([-2.0000, -1.3333])
    >>> interpolate(b, q, torch.tensor([0.0, 1.0]), progress=0.0)
    tensor([-1., -1.])
    """
    current_T = current_T.detach()
    if progress == 0.0:
        return current_T
    return behaviour_T.lerp(current_T, lags_T / (lags_T + progress))
