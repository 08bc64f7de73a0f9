"""The model being trained: a transformers causal LM that reads trees and returns logprobs.

Shapes: N tokens of the row, n of them on this rank, R nodes whose logits are needed, T loss terms, H hidden, V vocabulary.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from areal_sdk.algorithms.batch import Batch
from areal_sdk.config import LoraSection
from areal_sdk.errors import ConfigError
from areal_sdk.fsdp.adapter import ServedWeight, add_adapter, served_weights, trained_weights
from areal_sdk.fsdp.kernels.blocks import RowBlocks
from areal_sdk.fsdp.kernels.experts import EXPERTS
from areal_sdk.fsdp.kernels.head import OutputLayer, Statistic
from areal_sdk.fsdp.kernels.sequence_ranks import Reading, SequenceRanks
from areal_sdk.fsdp.kernels.tree_attention import ATTENTION
from areal_sdk.models.checkpoint import stored_dtypes, stored_tensors
from areal_sdk.models.experts import is_routed
from areal_sdk.models.families import check_trained, logit_cap, logit_scale

ROWS = 1024
"""Number of rows of two tables that are compared at once."""


class Policy(nn.Module):
    """`policy(batch)` returns for each loss term the logprob of its token, and the entropy of the distribution from
    which it was drawn, or another statistic. Both are of logits / temperature, (T,). The entropy has a gradient only
    if one is asked for."""

    model: Any
    """A transformers `PreTrainedModel`, which brings no types."""

    def __init__(
        self, model: nn.Module, *, exact_head: bool = False, sequence: SequenceRanks | None = None
    ) -> None:
        """`exact_head` computes logits in float32, whatever autocast says."""
        super().__init__()
        self.model = model
        self.sequence = sequence or SequenceRanks()
        self.logit_scale = logit_scale(self.model.config)
        plain = self.model.get_output_embeddings()
        if plain.bias is not None:
            raise ConfigError("an output layer with a bias is not supported")
        self.model.set_output_embeddings(
            OutputLayer(plain, is_exact=exact_head, cap=logit_cap(self.model.config))
        )

    def forward(
        self, batch: Batch, *, entropy_gradient: bool = False, statistic: Statistic | None = None
    ) -> tuple[Tensor, Tensor]:
        def read(hidden_RH: Tensor, reading: Reading) -> tuple[Tensor, Tensor]:
            return self.head.token_logprobs(
                hidden_RH,
                reading.temperatures_R / self.logit_scale,
                reading.rows_T,
                reading.targets_T,
                entropy_gradient=entropy_gradient,
                statistic=statistic,
            )

        hidden_nH = hidden_states(self.model.base_model, batch, self.sequence)
        logprobs_T, entropies_T = self.sequence.read(hidden_nH, batch, read)
        return logprobs_T, entropies_T

    @property
    def head(self) -> OutputLayer:
        head = self.model.get_output_embeddings()
        assert isinstance(head, OutputLayer)
        return head

    @property
    def is_tied(self) -> bool:
        """Whether the output layer has the weight of the embedding."""
        return self.head.weight is self.model.get_input_embeddings().weight

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Apply `fn` to the parameters, and tie the ends again: on some devices torch gives each tied module a copy."""
        is_tied = self.is_tied
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if is_tied:
            self.head.weight = self.model.get_input_embeddings().weight
        return self

    @property
    def ends(self) -> Sequence[nn.Module]:
        return [] if self.is_tied else [self.model.get_input_embeddings(), self.head]

    @property
    def layers(self) -> nn.ModuleList:
        layers = self.model.base_model.layers
        assert isinstance(layers, nn.ModuleList)
        return layers

    def named_weights(self) -> dict[str, nn.Parameter]:
        """The trained parameters. Without an adapter: all parameters."""
        return trained_weights(self.model)

    def served_weights(self) -> list[ServedWeight]:
        """The weights that engines hold."""
        return served_weights(self.model)


def hidden_states(trunk: Any, batch: Batch, sequence: SequenceRanks) -> Tensor:
    """The hidden states of a rank's part of a batch, (n, H): a transformers model without its output layer."""
    output = trunk(
        input_ids=sequence.part(batch.tokens_N)[None],
        position_ids=sequence.part(batch.positions_N)[None],
        use_cache=False,
        blocks=RowBlocks(batch.trees, device=batch.tokens_N.device),
        sequence=sequence,
    )
    hidden_nH: Tensor = output.last_hidden_state[0]
    return hidden_nH


def load_policy(
    model_dir: Path,
    *,
    device: torch.device | str = "cpu",
    exact_head: bool = False,
    lora: LoraSection | None = None,
    seed: int = 0,
    precision: str = "float32",
    is_filled: bool = True,
    sequence: SequenceRanks | None = None,
) -> Policy:
    """The policy of checkpoint `model_dir`, in float32, whatever the file holds.

    With `lora` it has an adapter, drawn with `seed`, and everything else is frozen. Matrices that are computed in
    `precision` are then kept in it, if that loses nothing. Without `is_filled` the parameters of the checkpoint have
    no memory yet (they are on the device "meta").
    """
    check_trained(model_dir)
    config = AutoConfig.from_pretrained(model_dir)
    ways = {
        "dtype": torch.float32,
        "attn_implementation": ATTENTION,
        "experts_implementation": EXPERTS,
    }
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, **ways)
    model.eval()
    policy = Policy(model, exact_head=exact_head, sequence=sequence)
    _check_weights(policy, model_dir)
    if is_filled:
        model = AutoModelForCausalLM.from_pretrained(model_dir, config=config, **ways)
        policy = Policy(model, exact_head=exact_head, sequence=sequence)
    if lora is not None and lora.rank:
        add_adapter(model, lora, model_dir, seed=seed, dtype=getattr(torch, precision))
    return policy.to(device) if is_filled else policy


def _check_weights(policy: Policy, model_dir: Path) -> None:
    """Raise ConfigError if the files and config.json disagree on the weights, on experts, or on tied ends."""
    model = policy.model
    stored = stored_dtypes(model_dir).keys()
    served = {part.name for weight in policy.served_weights() for part in weight.parts}
    absent = sorted(served - stored)
    if absent:
        raise ConfigError(
            f"{model_dir}: its files have no {absent[0]}"
            + (f" and {len(absent) - 1} more" if len(absent) > 1 else "")
            + " that its config.json asks for: save the whole model with save_pretrained"
        )
    family = model.config.model_type
    unknown = sorted(name for name in stored - served if is_routed(family, name))
    if unknown:
        raise ConfigError(
            f"{model_dir}: its files have {unknown[0]}, an expert that its config.json does not count: set "
            "num_experts (mixtral: num_local_experts) there to their number"
        )
    if model.config.tie_word_embeddings and not (policy.is_tied and _agree(policy, model_dir)):
        raise ConfigError(
            f"{model_dir}: config.json ties the output layer to the embedding, and the files hold two "
            "that differ: set tie_word_embeddings to false there"
        )


def _agree(policy: Policy, model_dir: Path) -> bool:
    """Whether the files hold one tensor for the output layer and the embedding, or two that are equal."""
    stored = stored_tensors(model_dir)
    ends = [policy.head, policy.model.get_input_embeddings()]
    names = [f"{name}.weight" for name, module in policy.model.named_modules() if module in ends]
    if not all(name in stored for name in names):
        return True
    one, other = (stored[name] for name in names)
    return one.shape == other.shape and all(
        np.array_equal(one.rows(start, start + ROWS), other.rows(start, start + ROWS))
        for start in range(0, one.shape[0], ROWS)
    )
