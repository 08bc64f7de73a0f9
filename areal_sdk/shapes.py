"""The numbers of a model that determine its memory and its speed. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal_sdk.models import resolve_model
from areal_sdk.models.experts import Mixture
from areal_sdk.models.families import read_config

_NORMED_HEADS = ("qwen3", "qwen3_moe", "exaone4", "olmo2", "olmoe")
"""Families that normalise queries and keys."""
_BIASED_HEADS = ("qwen2", "qwen2_moe")
"""Families with biases in attention that their config.json does not mention."""
_FULL_BY_DEFAULT = ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe")
"""Families whose `sliding_window` counts only if `use_sliding_window` says so."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder of layers with grouped attention and a gated feed-forward part, or experts."""

    vocabulary: int
    hidden: int
    intermediate: int
    """Width of the feed-forward part that every token passes; 0: there are experts alone."""
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    is_tied: bool = False
    """Whether one table serves as embedding and as output layer."""
    has_normed_heads: bool = False
    has_biased_heads: bool = False
    keeps_scores: bool = False
    """Whether some layers have a window, or a cap on their scores: their attention then keeps the scores of a block in memory."""
    mixture: Mixture | None = None
    """The experts of every layer; None: there are none. A model with some dense layers needs less than is computed here."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "ModelShape":
        """The architecture that config.json describes."""
        heads = int(config["num_attention_heads"])
        family = config.get("model_type")
        mixture = Mixture.of(config)
        return cls(
            vocabulary=int(config["vocab_size"]),
            hidden=int(config["hidden_size"]),
            intermediate=mixture.shared_inner if mixture else int(config["intermediate_size"]),
            layers=int(config["num_hidden_layers"]),
            heads=heads,
            key_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
            is_tied=bool(config.get("tie_word_embeddings")),
            has_normed_heads=family in _NORMED_HEADS,
            has_biased_heads=family in _BIASED_HEADS or bool(config.get("attention_bias")),
            keeps_scores=_has_window(config) or bool(config.get("attn_logit_softcapping")),
            mixture=mixture,
        )

    @property
    def queries(self) -> int:
        """Elements of a token's queries in a layer."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Elements of a token's keys in a layer, and of its values."""
        return self.key_heads * self.head_dim

    @property
    def linear_layers(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of the matrices of a layer, without those of experts."""
        to_queries, to_keys = (self.hidden, self.queries), (self.hidden, self.keys)
        attention = (to_queries, to_keys, to_keys, to_queries[::-1])
        if not self.intermediate:
            return attention
        wide = (self.hidden, self.intermediate)
        return (*attention, wide, wide, wide[::-1])

    @property
    def expert(self) -> int:
        """Elements of the matrices of an expert."""
        return 3 * self.hidden * self.mixture.inner if self.mixture else 0

    @property
    def matrices(self) -> int:
        """Elements of the matrices of a layer, without the router."""
        experts = self.mixture.num_experts * self.expert if self.mixture else 0
        return sum(inputs * outputs for inputs, outputs in self.linear_layers) + experts

    @property
    def layer(self) -> int:
        """Parameters of a layer."""
        normed = 2 * self.head_dim if self.has_normed_heads else 0
        biases = self.queries + 2 * self.keys if self.has_biased_heads else 0
        router = 0
        if self.mixture:  # and one output more, which weighs the part that every token passes
            router = self.hidden * (self.mixture.num_experts + bool(self.mixture.shared_inner))
        return self.matrices + 2 * self.hidden + normed + biases + router

    @property
    def table(self) -> int:
        """Elements of the embedding, and as many of the output layer."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """The number of all parameters.

        >>> smollm2 = ModelShape(49152, 576, 1536, 30, 9, 3, 64, is_tied=True)
        >>> smollm2.parameters
        134515008
        """
        tables = self.table if self.is_tied else 2 * self.table
        return self.layers * self.layer + tables + self.hidden

    @property
    def active(self) -> int:
        """Parameters that take part in computing a token: all but the experts that it did not choose.

        >>> qwen3 = ModelShape(151936, 2048, 0, 48, 32, 4, 128, has_normed_heads=True, mixture=Mixture(128, 8, 768))
        >>> qwen3.parameters, qwen3.active
        (30532122624, 3353032704)
        """
        if not self.mixture:
            return self.parameters
        idle = self.mixture.num_experts - self.mixture.chosen
        return self.parameters - self.layers * idle * self.expert

    def adapter(self, rank: int) -> int:
        """Parameters of an adapter for all matrices of the layers, without those of experts."""
        return self.layers * sum(rank * (i + o) for i, o in self.linear_layers)


def _has_window(config: Mapping[str, Any]) -> bool:
    is_used = config.get("use_sliding_window", config.get("model_type") not in _FULL_BY_DEFAULT)
    return bool(is_used and config.get("sliding_window"))


SHAPES = {
    "1.5B": ModelShape(151936, 1536, 8960, 28, 12, 2, 128, is_tied=True, has_biased_heads=True),
    "7B": ModelShape(152064, 3584, 18944, 28, 28, 4, 128, has_biased_heads=True),
    "32B": ModelShape(152064, 5120, 27648, 64, 40, 8, 128, has_biased_heads=True),
    "70B": ModelShape(128256, 8192, 28672, 80, 64, 8, 128),
}
"""Usual sizes of models, in place of a real model: vocabulary, hidden size, intermediate size, layers, heads, key heads
and dimension of a head."""


def find_shape(name: str) -> ModelShape:
    """The shape of `name`: a size in `SHAPES`, the directory of a model, or a model on a hub."""
    if name in SHAPES:
        return SHAPES[name]
    return ModelShape.of(read_config(find_directory(name)))


def find_directory(name: str) -> Path:
    """The directory `name` or, for a model on a hub, a directory with its config.json and without weights."""
    local = Path(name).expanduser()
    return local if local.is_dir() else resolve_model(name, weights=False)
