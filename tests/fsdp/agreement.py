"""Two trainers that take the same steps in different ways agree to 1e-5.

What may differ is the order in which float32 numbers are summed: about 5e-7 of the norm of a gradient.
So gradients are compared, as a whole and in units of their norm, through what an optimiser remembers of
them: a weighted sum. Weights are compared in the same way, not element by element. AdamW divides a
gradient by its own size: a coordinate whose gradient is nothing but rounding takes a full step, in a
direction that rounding decides. In a second minibatch, which starts from such weights, the 5e-7 have
become 5e-6 (`grpo`) to 2e-5 (`gspo`) at a learning rate of 1e-3 without a warm-up. A `descending`
trainer has nothing that amplifies: there the gradients of all minibatches agree.
"""

from collections.abc import Iterable, Mapping

import pytest
import torch
from torch import Tensor, nn

from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer

from .specs import changed

BOUND = 1e-5

ROUNDING = 2e-8
"""The error of a metric that is a difference of equal numbers: the KL of a policy that hardly moved."""

COSTS = ("num_computed", "wall_s", "cpu_s")
"""Costs of a step, which may differ."""


def descending(spec: TrainerSpec, ranks: Ranks | None = None) -> RankTrainer:
    """A trainer with plain gradient descent in place of AdamW, whose steps are as large."""
    trainer = RankTrainer(changed(spec, learning_rate=0.3, trust_region=0.0), ranks)
    for model, _ in _learners(trainer):
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        if model is trainer.policy:
            trainer.optimizer = optimizer  # type: ignore[assignment]
        else:
            assert trainer.critic is not None
            trainer.critic.optimizer = optimizer  # type: ignore[assignment]
    return trainer


def assert_same_metrics(one: Mapping[str, float], other: Mapping[str, float]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        if name not in COSTS and not name.startswith("cpu_"):
            assert other[name] == pytest.approx(one[name], rel=BOUND, abs=ROUNDING), name


def assert_same_learning(one: RankTrainer, other: RankTrainer) -> None:
    """The same gradients so far, and the same weights; of a critic too."""
    for mine, theirs in zip(_learners(one), _learners(other), strict=True):
        _assert_near(_gradients(*mine), _gradients(*theirs), "gradients")
        _assert_near(mine[0].parameters(), theirs[0].parameters(), "weights")


def _assert_near(one: Iterable[Tensor], other: Iterable[Tensor], what: str) -> None:
    mine, theirs = (torch.cat([t.detach().flatten().double() for t in x]) for x in (one, other))
    assert mine.norm() > 0.0, f"{what} that are all zero show nothing"
    distance = (mine - theirs).norm() / mine.norm()
    assert distance < BOUND, what


def _learners(trainer: RankTrainer) -> list[tuple[nn.Module, torch.optim.Optimizer]]:
    critic = trainer.critic
    of_critic = [] if critic is None else [(critic.model, critic.optimizer)]
    return [(trainer.policy, trainer.optimizer), *of_critic]


def _gradients(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """The gradients of `model` that `optimizer` remembers: AdamW, or descent with a momentum."""
    name = "exp_avg" if isinstance(optimizer, torch.optim.AdamW) else "momentum_buffer"
    return [optimizer.state[p][name] for p in model.parameters() if optimizer.state[p]]
