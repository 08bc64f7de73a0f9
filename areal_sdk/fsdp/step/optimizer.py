"""AdamW, its learning rate and its gradient bound: the same for the policy and for a critic."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.collectives import global_grad_norm
from areal_sdk.fsdp.step.trust_region import Moved, Update


def make_optimizer(model: nn.Module, settings: TrainerSection) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        model.parameters(),
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def scheduled(settings: TrainerSection, *, step: int, num_steps: int) -> float:
    """The part of the learning rate that the schedule leaves in `step`, counted from 0.

    >>> line = TrainerSection(schedule="linear", warmup_steps=2)
    >>> [scheduled(line, step=step, num_steps=6) for step in range(7)]
    [1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    if settings.schedule == "constant":
        return 1.0
    if settings.schedule == "wsd":
        left = (num_steps - step) / (settings.decay_share * num_steps)
    else:
        left = (num_steps - step) / max(1, num_steps - settings.warmup_steps)
    left = min(1.0, max(0.0, left))
    if settings.schedule == "cosine":
        left = (1.0 - math.cos(math.pi * left)) / 2.0
    return left + (1.0 - left) * settings.schedule_end


def warmed_up(settings: TrainerSection, *, step: int) -> float:
    """The part of the learning rate that the warm-up allows in `step`, counted from 0.

    >>> [warmed_up(TrainerSection(warmup_steps=4), step=step) for step in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    return min(1.0, (step + 1) / max(1, settings.warmup_steps))


@dataclass(frozen=True, slots=True)
class Applied:
    grad_norm: float
    """Norm of the gradient before clipping."""
    update: Update | None
    """None: nothing was updated."""
    moved: Moved | None = None
    """The effect on the policy; None if it was not measured."""

    @property
    def share(self) -> float:
        """Share of the update that the trust region left; 1 if the update was not measured."""
        return 1.0 if self.moved is None else self.moved.share


def moves_of(updates: Sequence[Applied]) -> list[Moved]:
    """The effects of the updates that were measured."""
    return [update.moved for update in updates if update.moved is not None]


def apply_gradients(
    model: nn.Module,
    optimizer: torch.optim.AdamW,
    settings: TrainerSection,
    *,
    learning_rate: float,
) -> Applied:
    """Clip, update, forget the gradients.

    A gradient that is not finite would poison weights and moments for good: it is dropped, on all ranks alike since
    all know the same norm, and reported. If the gradient is zero, there was nothing to learn: past gradients, which
    the moments keep, must not move the weights on.
    """
    parameters = list(model.parameters())
    norm = global_grad_norm(parameters)
    grad_norm = norm.item()
    update = None
    if math.isfinite(grad_norm) and grad_norm > 0.0:
        torch.nn.utils.clip_grads_with_norm_(parameters, settings.max_grad_norm, norm)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()
        update = Update(optimizer, [p for p in parameters if p.grad is not None])
    optimizer.zero_grad(set_to_none=True)
    return Applied(grad_norm, update)


def worst(norms: Sequence[float]) -> float:
    """The largest of several gradient norms; one that is not finite is larger than all.

    >>> worst([1.0, math.nan, 2.0])
    nan
    """
    return max(norms, key=lambda norm: (not math.isfinite(norm), norm))
