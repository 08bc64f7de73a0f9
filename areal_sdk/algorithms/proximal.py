"""Where the trust region's centre p comes from: logprobs under the weights at the step's start."""

from enum import StrEnum

import torch
from torch import Tensor


class Proximal(StrEnum):
    """How p is found from the second minibatch of a step on. In the first, p = q.detach()."""

    RECOMPUTE = "recompute"
    """One forward over the batch before the first update."""
    INTERPOLATE = "interpolate"
    """No forward: on the way from b to q."""


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
