"""The model being trained: a transformers causal LM that reads trees and returns logprobs.

Shapes: N tokens of the row, R nodes whose logits are needed, T loss terms, H hidden, V vocabulary.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from areal_sdk.algorithms.batch import Batch
from areal_sdk.errors import ConfigError
from areal_sdk.fsdp.tree_attention import ATTENTION, attention_blocks
from areal_sdk.models.checkpoint import stored_dtypes
from areal_sdk.models.families import check_trained, logit_scale

CHUNK_ELEMENTS = 2**22
"""Float32 logits held at once: small enough to stay in a cache while they are worked on."""


class Policy(nn.Module):
    """`policy(batch)`: for each loss term the logprob of its token and, with a gradient only where one
    is asked for, the entropy of the distribution it was drawn from; both of logits / temperature,
    (T,)."""

    model: Any
    """A transformers `PreTrainedModel`, which brings no types."""

    def __init__(self, model: nn.Module, *, exact_head: bool = False) -> None:
        """`exact_head`: logits are computed in float32, whatever autocast says."""
        super().__init__()
        self.model = model
        self.exact_head = exact_head
        self.logit_scale = logit_scale(self.model.config)

    def forward(self, batch: Batch, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        hidden_RH = hidden_states(self.model.base_model, batch)[batch.nodes_R]
        weight_VH = self.head.weight
        if self.exact_head:
            hidden_RH, weight_VH = hidden_RH.float(), weight_VH.float()
        autocasts = torch.is_autocast_enabled(hidden_RH.device.type) and not self.exact_head
        with torch.autocast(hidden_RH.device.type, enabled=autocasts):
            return token_logprobs(
                hidden_RH,
                weight_VH,
                batch.temperatures_R / self.logit_scale,
                batch.rows_T,
                batch.targets_T,
                entropy_gradient=entropy_gradient,
            )

    @property
    def head(self) -> nn.Linear:
        head = self.model.get_output_embeddings()
        assert isinstance(head, nn.Linear)
        return head

    @property
    def layers(self) -> nn.ModuleList:
        layers = self.model.base_model.layers
        assert isinstance(layers, nn.ModuleList)
        return layers

    def named_weights(self) -> dict[str, nn.Parameter]:
        """Parameters under the names that the checkpoint gives them; tied ones once."""
        return dict(self.model.named_parameters())


def hidden_states(trunk: Any, batch: Batch) -> Tensor:
    """What a transformers model without its output layer makes of a batch, (N, H)."""
    device = batch.tokens_N.device
    blocks = [block.to(device) for block in attention_blocks(batch.trees)]
    output = trunk(
        input_ids=batch.tokens_N[None],
        position_ids=batch.positions_N[None],
        use_cache=False,
        blocks=blocks,
    )
    hidden_NH: Tensor = output.last_hidden_state[0]
    return hidden_NH


def load_policy(
    model_dir: Path, *, device: torch.device | str = "cpu", exact_head: bool = False
) -> Policy:
    """The policy of checkpoint `model_dir`, in float32, whatever the file holds."""
    check_trained(model_dir)
    config = AutoConfig.from_pretrained(model_dir)
    model = AutoModelForCausalLM.from_pretrained(
        model_dir, config=config, dtype=torch.float32, attn_implementation=ATTENTION
    )
    policy = Policy(model, exact_head=exact_head)
    _check_weights(policy, model_dir)
    return policy.to(device)


def _check_weights(policy: Policy, model_dir: Path) -> None:
    """ConfigError where the policy is not what the files hold, or would be published as another."""
    model = policy.model
    absent = sorted(policy.named_weights().keys() - stored_dtypes(model_dir).keys())
    if absent:
        raise ConfigError(
            f"{model_dir}: its files have no {absent[0]}"
            + (f" and {len(absent) - 1} more" if len(absent) > 1 else "")
            + " that its config.json asks for: save the whole model with save_pretrained"
        )
    is_tied = policy.head.weight is model.get_input_embeddings().weight
    if model.config.tie_word_embeddings and not is_tied:
        raise ConfigError(
            f"{model_dir}: config.json ties the output layer to the embedding, and the files hold two "
            "that differ: set tie_word_embeddings to false there"
        )
    if getattr(policy.head, "bias", None) is not None:
        raise ConfigError(f"{model_dir}: an output layer with a bias is not supported")


def token_logprobs(
    hidden_RH: Tensor,
    weight_VH: Tensor,
    temperatures_R: Tensor,
    rows_T: Tensor,
    targets_T: Tensor,
    *,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """log softmax(hidden weight' / T) of each target under its row, and the entropy of that row.

    Both (T,), in float32; the entropy has a gradient where `entropy_gradient` asks for one. What is
    kept for the backward pass are the logits in the type of the matrix product; float32 copies exist
    a few rows at a time.
    """
    if torch.is_autocast_enabled(hidden_RH.device.type):
        dtype = torch.get_autocast_dtype(hidden_RH.device.type)
        hidden_RH, weight_VH = hidden_RH.to(dtype), weight_VH.to(dtype)
    logprobs_T, entropies_R = _TokenLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_RH, weight_VH, temperatures_R, rows_T, targets_T, entropy_gradient
    )
    return logprobs_T, entropies_R[rows_T]


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_RH: Tensor,
        weight_VH: Tensor,
        temperatures_R: Tensor,
        rows_T: Tensor,
        targets_T: Tensor,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        logits_RV = torch.mm(hidden_RH, weight_VH.t())
        normalisers_R = torch.empty_like(temperatures_R)
        entropies_R = torch.empty_like(temperatures_R)
        for rows in _chunks(logits_RV):
            scaled = logits_RV[rows] / temperatures_R[rows, None]  # float32 by promotion
            normalisers_R[rows] = torch.logsumexp(scaled, dim=-1)
            probabilities = (scaled - normalisers_R[rows, None]).exp_()
            entropies_R[rows] = normalisers_R[rows] - probabilities.mul_(scaled).sum(-1)
        chosen_T = logits_RV[rows_T, targets_T].float() / temperatures_R[rows_T]
        ctx.save_for_backward(
            hidden_RH, weight_VH, temperatures_R, rows_T, targets_T, logits_RV, normalisers_R
        )
        ctx.entropies_R = entropies_R.detach().clone() if entropy_gradient else None
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropies_R)
        return chosen_T - normalisers_R[rows_T], entropies_R

    @staticmethod
    def backward(ctx: Any, grad_T: Tensor, grad_R: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors
        hidden_RH, weight_VH, temperatures_R, rows_T, targets_T, logits_RV, normalisers_R = saved
        # d logprob_t / d logits = (onehot(target) - softmax) / T; terms that share a row add up.
        weights_T = grad_T / temperatures_R[rows_T]
        total_R = torch.zeros_like(temperatures_R).index_add_(0, rows_T, weights_T)
        grad_RV = torch.empty_like(logits_RV)
        for rows in _chunks(logits_RV):
            part = logits_RV[rows] / temperatures_R[rows, None]  # float32 by promotion
            part.sub_(normalisers_R[rows, None])
            slope = -total_R[rows, None]
            if ctx.entropies_R is not None:
                # d entropy / d logits = -softmax (log softmax + entropy) / T
                share = grad_R[rows] / temperatures_R[rows]
                slope = slope - share[:, None] * (part + ctx.entropies_R[rows, None])
            part.exp_().mul_(slope)
            # Before rounding: where a token is nearly certain, one and its probability cancel.
            here = (rows_T >= rows.start) & (rows_T < rows.stop)
            where = (rows_T[here] - rows.start, targets_T[here])
            part.index_put_(where, weights_T[here], accumulate=True)
            grad_RV[rows] = part
        return (
            torch.mm(grad_RV, weight_VH),
            torch.mm(grad_RV.t(), hidden_RH),
            *(None,) * 4,
        )


def _chunks(logits_RV: Tensor) -> list[slice]:
    num_rows, vocab_size = logits_RV.shape
    size = max(1, CHUNK_ELEMENTS // vocab_size)
    return [slice(start, min(start + size, num_rows)) for start in range(0, num_rows, size)]
