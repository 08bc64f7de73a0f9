"""A critic: the trunk of the run's first checkpoint and a scalar head, with an optimiser of its own."""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from areal_sdk.algorithms.batch import Batch
from areal_sdk.algorithms.objectives import Critic
from areal_sdk.fsdp.adapter import trained_weights
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.kernels.sequence_ranks import Reading
from areal_sdk.fsdp.loading import load_trained
from areal_sdk.fsdp.policy import Policy, hidden_states
from areal_sdk.fsdp.sharding import summed_at_the_end
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step.metrics import Meter
from areal_sdk.fsdp.step.optimizer import apply_gradients, make_optimizer, warmed_up, worst
from areal_sdk.fsdp.step.planning import Minibatch


class ValueModel(nn.Module):
    """`values(batch)`: for each loss term the value of the state that its token was sampled in."""

    trunk: Any
    """A transformers model without its output layer."""

    def __init__(self, policy: Policy) -> None:
        """Take the trunk of `policy`."""
        super().__init__()
        self.trunk = policy.model.base_model
        self._sequence = policy.sequence
        self.head = nn.Linear(self.trunk.config.hidden_size, 1)
        nn.init.zeros_(self.head.weight)  # it begins by expecting nothing, on every rank alike
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: Batch) -> Tensor:
        def read(hidden_RH: Tensor, reading: Reading) -> tuple[Tensor]:
            values_R: Tensor = self.head(hidden_RH)[:, 0].float()
            return (values_R[reading.rows_T],)

        hidden_nH = hidden_states(self.trunk, batch, self._sequence)
        [values_T] = self._sequence.read(hidden_nH, batch, read)
        return values_T

    @property
    def layers(self) -> nn.ModuleList:
        layers = self.trunk.layers
        assert isinstance(layers, nn.ModuleList)
        return layers

    @property
    def ends(self) -> Sequence[nn.Module]:
        return [self.trunk.get_input_embeddings()]

    def named_weights(self) -> dict[str, nn.Parameter]:
        """The trained parameters."""
        return trained_weights(self)


class CriticTrainer:
    """The value model of one rank, and its optimiser."""

    def __init__(
        self,
        spec: Critic,
        trainer: TrainerSpec,
        ranks: Ranks,
        autocast: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.spec = spec
        self.settings = trainer.trainer
        self.ranks = ranks
        self.autocast = autocast
        self.model = load_trained(trainer, ranks, ValueModel)
        self.optimizer = make_optimizer(self.model, self.settings)
        self.num_updates = 0
        self.num_steps = 0
        """Number of steps since the critic began: the clock of its warm-up. A critic may begin late in a run."""

    def values(self, batch: Batch) -> Tensor:
        with self.autocast():
            values_T: Tensor = self.model(batch)
        return values_T

    def update(
        self, minibatches: Sequence[Minibatch], meter: Meter, *, rate: float
    ) -> dict[str, float]:
        """One update for each minibatch, on the returns that its batches hold.

        `rate`: the part of the critic's learning rate that the schedule leaves.
        """
        rate *= warmed_up(self.settings, step=self.num_steps)
        of_critic, totals = Meter(), {"value_loss": 0.0}
        norms, num_terms = [], 0
        with meter.phase("critic"):
            for minibatch in minibatches:
                num_terms += minibatch.num_terms
                for batch in summed_at_the_end(self.model, minibatch.batches, self.settings):
                    assert batch.values_T is not None
                    assert batch.returns_T is not None
                    values_T = self.values(batch)
                    loss = self.spec.loss(values_T, batch.values_T, batch.returns_T, batch.mask_T)
                    weighted = loss.weighted(batch.weights_T)
                    # FSDP averages gradients over ranks; ours are sums.
                    torch.autograd.backward(weighted * (self.ranks.size / minibatch.divisor))
                    of_critic.note(weighted, totals, "value_loss", minibatch.divisor)
                    for name, value in loss.totals.items():
                        of_critic.note(value, totals, name)
                applied = apply_gradients(
                    self.model,
                    self.optimizer,
                    self.settings,
                    learning_rate=self.spec.learning_rate * rate,
                )
                self.num_updates += applied.update is not None
                norms.append(applied.grad_norm)
            of_critic.read()
        sums = self.ranks.rows.sum(totals)
        value_loss = sums.pop("value_loss") / len(minibatches)
        means = {name: total / num_terms for name, total in sums.items()}
        return {
            "value_loss": value_loss,
            "value_grad_norm": worst(norms),
            "num_skipped_updates": float(sum(not math.isfinite(norm) for norm in norms)),
            **means,
        }
