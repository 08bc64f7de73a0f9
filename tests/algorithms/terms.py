"""Loss terms in float64, whose logprobs have a gradient."""

from typing import Any

import torch
from torch import Tensor

from areal_sdk.algorithms.objectives import PolicyTerms


def make_terms(
    current: Any,
    proximal: Any,
    behaviour: Any,
    advantages: Any,
    *,
    mask: Any = None,
    sequences: Any = None,
    **rest: Any,
) -> PolicyTerms:
    """`rest`: further fields of `PolicyTerms`."""

    def tensor(values: Any) -> Tensor:
        return torch.as_tensor(values, dtype=torch.float64)

    q = tensor(current).detach().requires_grad_()
    size = len(q)
    ones = torch.ones(size, dtype=torch.float64)
    return PolicyTerms(
        current_T=q,
        proximal_T=tensor(proximal),
        behaviour_T=tensor(behaviour),
        advantages_T=tensor(advantages),
        mask_T=ones.bool() if mask is None else torch.as_tensor(mask),
        sequences_T=ones.long() * 0 if sequences is None else torch.as_tensor(sequences),
        groups_T=ones.long() * 0,
        lags_T=ones * 0,
        weights_T=ones,
        divisor=float(size),
        **rest,
    )
