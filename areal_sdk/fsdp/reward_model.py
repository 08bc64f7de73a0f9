"""A reward model: the trunk of a checkpoint and a scalar head, read at a sequence's last token.

It is trained in the same way as a policy, with the reward of a sequence in the place of a logprob. Exported, it is
transformers' model for sequence classification with one label.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModel

from areal_sdk.algorithms.batch import Batch
from areal_sdk.errors import ConfigError
from areal_sdk.fsdp.adapter import ServedWeight, served_weights, trained_weights
from areal_sdk.fsdp.kernels.sequence_ranks import Reading
from areal_sdk.fsdp.policy import Policy, hidden_states
from areal_sdk.models.families import check_reward_model
from areal_sdk.trainer import Demonstration

HEAD = "score.weight"
"""The name that transformers gives the head."""


class RewardModel(nn.Module):
    """`model(batch)`: for each loss term the reward of the sequence before its token, and zeros where
    a policy has entropies."""

    model: Any
    """A transformers model without its output layer."""

    def __init__(self, policy: Policy) -> None:
        """Take the trunk of `policy`."""
        super().__init__()
        causal = policy.model
        self.model = causal.base_model
        self._sequence = policy.sequence
        self._prefix = causal.base_model_prefix
        self.score = nn.Linear(self.model.config.hidden_size, 1, bias=False)
        nn.init.zeros_(self.score.weight)  # it begins without a preference, on every rank alike

    def forward(self, batch: Batch, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
        def read(hidden_RH: Tensor, reading: Reading) -> tuple[Tensor]:
            hidden_RH = hidden_RH.float()
            with torch.autocast(hidden_RH.device.type, enabled=False):  # rewards of pairs are close
                rewards_R = torch.mv(hidden_RH, self.score.weight[0])
            return (rewards_R[reading.rows_T],)

        hidden_nH = hidden_states(self.model, batch, self._sequence)
        [rewards_T] = self._sequence.read(hidden_nH, batch, read)
        return rewards_T, torch.zeros_like(rewards_T)

    @property
    def layers(self) -> nn.ModuleList:
        layers = self.model.layers
        assert isinstance(layers, nn.ModuleList)
        return layers

    @property
    def ends(self) -> Sequence[nn.Module]:
        return [self.model.get_input_embeddings()]

    def named_weights(self) -> dict[str, nn.Parameter]:
        """The trained parameters, the head included, under the names that transformers gives them."""
        head = dict(self.score.named_parameters(prefix=HEAD.removesuffix(".weight")))
        trunk = {f"{self._prefix}.{n}": w for n, w in trained_weights(self.model).items()}
        return {**trunk, **head}

    def served_weights(self) -> list[ServedWeight]:
        """The weights that an export holds."""
        trunk = served_weights(self.model, prefix=f"{self._prefix}.")
        return [*trunk, ServedWeight.alone(HEAD, self.score.weight)]


def judged(row: Demonstration) -> Demonstration:
    """The row with its reward as its only term. A term is read at the token before its own. So the row gets one more
    token, which no model reads, and the reward is read at the row's last token."""
    if not row.tokens:
        raise ValueError("an empty sequence has no reward: it has no last token")
    mask = (False,) * len(row.tokens) + (True,)
    return Demonstration((*row.tokens, 0), mask, row.weight)


def as_classifier(config: dict[str, Any]) -> dict[str, Any]:
    """The config.json of the reward model, made of that of the policy with the same trunk."""
    classes = [
        name.replace("ForCausalLM", "ForSequenceClassification")
        for name in config.get("architectures") or ()
    ]
    labels = {"id2label": {"0": "reward"}, "label2id": {"reward": 0}}
    return {**config, "architectures": classes, **labels}


class Judge:
    """An exported reward model that judges one sequence at a time."""

    def __init__(self, model_dir: Path) -> None:
        check_reward_model(model_dir)
        self.model_dir = model_dir
        self._trunk = AutoModel.from_pretrained(model_dir, dtype=torch.float32).eval()
        with safe_open(model_dir / "model.safetensors", framework="pt") as file:
            if HEAD not in file.keys():  # noqa: SIM118 - not a mapping
                raise ConfigError(
                    f"{model_dir}: a reward model's file has {HEAD}, and this has not"
                )
            self._head_H = file.get_tensor(HEAD)[0].float()

    @torch.inference_mode()
    def reward(self, tokens: Sequence[int]) -> float:
        """The reward of a sequence, read at its last token."""
        most = self._trunk.config.vocab_size
        if not tokens or max(tokens) >= most:
            raise ValueError(
                f"a sequence of {len(tokens)} tokens up to id {max(tokens, default=-1)} cannot be judged "
                f"by {self.model_dir}, which knows {most}: judge the family it was trained on"
            )
        hidden_NH = self._trunk(input_ids=torch.tensor([list(tokens)])).last_hidden_state[0]
        return float(hidden_NH[-1] @ self._head_H)
