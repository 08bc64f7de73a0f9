"""AdamW, its warm-up and its gradient bound: the same for the policy and for a critic."""

from dataclasses import dataclass

import torch
from torch import nn

from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.collectives import global_grad_norm

BETAS = (0.9, 0.999)
"""Of AdamW. The second remembers the large gradients of the start: with a short memory, a nearly
solved task's tiny, noisy gradients would be scaled up to full steps and undo what was learned."""


def make_optimizer(model: nn.Module, settings: TrainerSection) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        model.parameters(), betas=BETAS, weight_decay=settings.weight_decay, fused=True
    )


@dataclass(frozen=True, slots=True)
class Applied:
    grad_norm: float
    """Before clipping."""
    is_updated: bool


def apply_gradients(
    model: nn.Module,
    optimizer: torch.optim.AdamW,
    settings: TrainerSection,
    *,
    learning_rate: float,
    num_updates: int,
) -> Applied:
    """Clip, update, forget the gradients. `num_updates` went before; they drive the warm-up.

    A gradient that is not finite would poison weights and moments for good: it is dropped, on all
    ranks alike since all know the same norm, and reported. Where the gradient is zero there was
    nothing to learn: past gradients, kept in the moments, must not move the weights on.
    """
    parameters = list(model.parameters())
    norm = global_grad_norm(parameters)
    is_updated = bool(torch.isfinite(norm)) and norm.item() > 0.0
    if is_updated:
        torch.nn.utils.clip_grads_with_norm_(parameters, settings.max_grad_norm, norm)
        warmup = min(1.0, (num_updates + 1) / max(1, settings.warmup_steps))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * warmup
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return Applied(norm.item(), is_updated)
