"""Losses as sums over tokens, so that micro-batches and ranks add up exactly.

Shapes: T loss terms. The caller divides by the *global* count of trained tokens.

Where the trust region's centre p comes from: logprobs under the weights at the step's start.
"""

import math
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PolicyTerms:
    """One micro-batch of loss terms. All logprobs are of logits / T."""

    current_T: Tensor
    """q: under the weights being trained; carries the gradient."""
    proximal_T: Tensor
    """p: under the weights at the start of the step; the trust region's centre."""
    behaviour_T: Tensor
    """b: under the weights that sampled the token."""
    advantages_T: Tensor
    mask_T: Tensor
    sequences_T: Tensor
    """Which trajectory of the micro-batch a term belongs to: for objectives that look at whole ones."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A sum over tokens, and what to report about it."""

    sum: Tensor
    totals: dict[str, Tensor] = field(default_factory=dict)
    """Sums over the masked tokens; the mean over a step is reported."""
    maxima: dict[str, Tensor] = field(default_factory=dict)


class Objective(Protocol):
    def __call__(self, terms: PolicyTerms) -> Loss: ...


@dataclass(frozen=True, slots=True)
class ImportanceWeight:
    """w = exp(p - b), detached: corrects for who sampled the token. Clamped to `maximum`."""

    maximum: float

    def __call__(self, terms: PolicyTerms) -> Tensor:
        """The bounded weights; 1 where `mask_T` is False.

        >>> p, b = torch.tensor([0.0, 0.0]), torch.tensor([0.0, -3.0])
        >>> terms = PolicyTerms(p, p, b, p, torch.tensor([True, True]), torch.tensor([0, 0]))
        >>> ImportanceWeight(maximum=5.0)(terms)
        tensor([1., 5.])
        """
        log_w_T = masked(terms.proximal_T - terms.behaviour_T, terms.mask_T).detach()
        return log_w_T.exp().clamp(max=self.maximum)


@dataclass(frozen=True, slots=True)
class ClippedSurrogate:
    """Decoupled PPO: -w * min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r = exp(q - p).

    With one minibatch a step p is q itself, r is 1 and nothing is ever clipped: what bounds the
    update then is w and the learning rate.
    """

    clip_low: float
    clip_high: float
    weight: ImportanceWeight

    def __call__(self, terms: PolicyTerms) -> Loss:
        mask_T, advantages_T = terms.mask_T, terms.advantages_T
        w_T = self.weight(terms)
        ratio_T = masked(terms.current_T - terms.proximal_T, mask_T).exp()
        bounded_T = ratio_T.clamp(1.0 - self.clip_low, 1.0 + self.clip_high)
        plain_T, clipped_T = ratio_T * advantages_T, bounded_T * advantages_T
        gain_T = masked(w_T * torch.minimum(plain_T, clipped_T), mask_T)
        with torch.no_grad():
            lag_T = masked(terms.proximal_T - terms.behaviour_T, mask_T)
            totals = {
                "clip_fraction": (mask_T & (clipped_T < plain_T)).sum(),
                "ratio": masked(ratio_T, mask_T).sum(),
                "weight": masked(w_T, mask_T).sum(),
                "weight_bounded": (mask_T & (lag_T > math.log(self.weight.maximum))).sum(),
                # E_b[log b - log p], from samples of b: (w - 1) - log w, never negative.
                "kl_behaviour": (lag_T.exp() - 1.0 - lag_T).sum(),
            }
            maxima = {"ratio_max": ratio_T.max(), "weight_max": lag_T.max().exp()}
        return Loss(-gain_T.sum(), totals, maxima)


def imitation(current_T: Tensor, weights_T: Tensor, mask_T: Tensor) -> Loss:
    """The negative logprob of each demonstrated token, weighted: supervised fine-tuning has ones."""
    return Loss(-masked(current_T * weights_T, mask_T).sum())


def masked(values_T: Tensor, mask_T: Tensor) -> Tensor:
    """Zero where not `mask_T`, in value and in gradient, whatever stood there.

    Mask *before* exp: a NaN or an infinity that is multiplied by zero stays one.

    >>> x = torch.tensor([0.0, float("nan")], requires_grad=True)
    >>> y = masked(x, torch.tensor([True, False])).exp().sum()
    >>> y.backward()
    >>> y.item(), x.grad
    (2.0, tensor([1., 0.]))
    """
    return torch.where(mask_T, values_T, 0.0)


def interpolate(
    behaviour_T: Tensor, current_T: Tensor, lags_T: Tensor, *, progress: float
) -> Tensor:
    """p between b and q.detach(), without a forward.

    The behaviour lies `lag` updates before the start of the step and q `progress` updates (a
    fraction: minibatches done / minibatches) after it. If logprobs drift evenly, p lies
    `lag / (lag + progress)` of the way: b itself at lag 0, q itself before the first minibatch.

    >>> b, q = torch.tensor([-2.0, -2.0]), torch.tensor([-1.0, -1.0])
    >>> interpolate(b, q, torch.tensor([0.0, 1.0]), progress=0.5)
    tensor([-2.0000, -1.3333])
    >>> interpolate(b, q, torch.tensor([0.0, 1.0]), progress=0.0)
    tensor([-1., -1.])
    """
    current_T = current_T.detach()
    if progress == 0.0:
        return current_T
    return torch.lerp(behaviour_T, current_T, lags_T / (lags_T + progress))
