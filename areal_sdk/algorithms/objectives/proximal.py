"""The source of the trust region's centre p."""

from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


class Proximal(StrEnum):
    """The way to find p. At the start of a step, q itself is the policy that the step starts from.

    A centre of its own, apart from the sampler: Hilton et al. 2021, arXiv 2110.00641; for language models AReaL,
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
