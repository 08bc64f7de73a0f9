"""The fields of a checkpoint's config.json that the engine's forward needs. Imports no torch."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal_sdk.errors import ConfigError, EngineError
from areal_sdk.models.experts import Mixture
from areal_sdk.models.families import read_config

SUPPORTED = ("llama", "qwen2", "qwen3", "qwen3_moe")
CURE = 'serve this model with SGLang (engine.name = "sglang"; docs/models.md says which train)'

_NEUTRAL: dict[str, Any] = {
    "attention_multiplier": None,
    "attn_logit_softcapping": None,
    "embedding_multiplier": 1,
    "final_logit_softcapping": None,
    "logit_scale": 1,
    "logits_scaling": 1,
    "num_experts": 0,
    "num_local_experts": 0,
    "residual_multiplier": 1,
}
"""Fields that change what related models compute, and the value with which they change nothing."""
_COUNTS_OF_EXPERTS = ("num_experts", "num_local_experts")
_ROPE_FIELDS = {
    "rope_type",
    "type",
    "rope_theta",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "original_max_position_embeddings",
    "partial_rotary_factor",
}


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding: plain, linearly scaled, or Llama 3's banded scaling."""

    theta: float
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 1.0
    original_context: int = 0


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder of the Llama family."""

    model_type: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    max_context: int
    norm_eps: float
    rope: Rope
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool
    tied_embeddings: bool
    dtype: str
    """Dtype of the stored weights: "float32", "bfloat16" or "float16"."""
    mixture: Mixture | None = None
    """The experts that every layer has in place of one wide part."""
    norm_topk_prob: bool = False
    """Whether the weights of a token's experts are scaled to add up to one."""

    @property
    def kv_width(self) -> int:
        """Number of values that keys and values have for each token and layer."""
        return 2 * self.num_kv_heads * self.head_dim

    @property
    def num_parameters(self) -> int:
        """Number of weights that are read to make one token; a tied embedding counts once."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        inner = self.intermediate_size
        if self.mixture is not None:
            inner = self.mixture.chosen * self.mixture.inner
        mlp = 3 * self.hidden_size * inner
        return self.num_layers * (attention + mlp) + self.vocab_size * self.hidden_size

    @classmethod
    def load(cls, directory: Path) -> "Architecture":
        """Read `directory/config.json`. EngineError if this forward would compute the model wrongly."""
        try:
            config = read_config(directory)
        except ConfigError as exc:
            raise EngineError(str(exc)) from None
        return cls.from_config(config, where=str(directory / "config.json"))

    @classmethod
    def from_config(cls, config: dict[str, Any], *, where: str = "config") -> "Architecture":
        model_type = config.get("model_type")
        if model_type not in SUPPORTED:
            raise EngineError(
                f"{where}: the local engine runs {', '.join(SUPPORTED)} models, "
                f"not model_type {model_type!r}: {CURE}"
            )
        _refuse_unsupported(config, where)
        try:
            return _build(config, model_type, where)
        except KeyError as exc:
            raise EngineError(
                f"{where}: the field {exc} is missing: save the whole model with save_pretrained"
            ) from exc


def _build(config: dict[str, Any], model_type: str, where: str) -> Architecture:
    num_heads = int(config["num_attention_heads"])
    attention_bias = bool(config.get("attention_bias", False))
    return Architecture(
        model_type=model_type,
        num_layers=int(config["num_hidden_layers"]),
        hidden_size=int(config["hidden_size"]),
        intermediate_size=int(config["intermediate_size"]),
        num_heads=num_heads,
        num_kv_heads=int(config.get("num_key_value_heads") or num_heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // num_heads),
        vocab_size=int(config["vocab_size"]),
        max_context=int(config["max_position_embeddings"]),
        norm_eps=float(config["rms_norm_eps"]),
        rope=_rope(config, where),
        qkv_bias=True if model_type == "qwen2" else attention_bias,
        output_bias=attention_bias if model_type != "qwen2" else False,
        mlp_bias=model_type == "llama" and bool(config.get("mlp_bias", False)),
        qk_norm=model_type in ("qwen3", "qwen3_moe"),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
        mixture=Mixture.of(config),
        norm_topk_prob=bool(config.get("norm_topk_prob", False)),
    )


def _refuse_unsupported(config: dict[str, Any], where: str) -> None:
    problems: list[str] = []
    if config.get("hidden_act", "silu") not in ("silu", "swish"):
        problems.append(f"hidden_act {config['hidden_act']!r}")
    if config.get("use_sliding_window"):
        problems.append("sliding-window attention")
    if set(config.get("layer_types") or ["full_attention"]) != {"full_attention"}:
        problems.append(f"layer_types {sorted(set(config['layer_types']))}")
    if config.get("quantization_config"):
        problems.append("quantized weights")
    has_experts = Mixture.of(config) is not None
    if has_experts and (config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1):
        problems.append(
            "dense layers among those of experts (mlp_only_layers, decoder_sparse_step)"
        )
    for field, neutral in _NEUTRAL.items():
        if has_experts and field in _COUNTS_OF_EXPERTS:
            continue
        if config.get(field) not in (None, neutral):
            problems.append(f"{field} {config[field]!r}")
    if problems:
        raise EngineError(
            f"{where}: the local engine does not support {', '.join(problems)}: {CURE}"
        )


def _rope(config: dict[str, Any], where: str) -> Rope:
    # transformers 5 writes rope_parameters; older checkpoints rope_theta and rope_scaling.
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    kind = str(scaling.get("rope_type") or scaling.get("type") or "default")
    if kind not in ("default", "linear", "llama3"):
        raise EngineError(
            f"{where}: rope scaling {kind!r} is not supported by the local engine "
            f"(default, linear and llama3 are): {CURE}"
        )
    if float(scaling.get("partial_rotary_factor", config.get("partial_rotary_factor", 1.0))) != 1.0:
        raise EngineError(f"{where}: partial rotary embeddings are not supported: {CURE}")
    if unknown := sorted(scaling.keys() - _ROPE_FIELDS):
        raise EngineError(
            f"{where}: the local engine does not know the rope fields {', '.join(unknown)}: {CURE}"
        )
    if kind == "default":
        return Rope(theta)
    if kind == "linear":
        return Rope(theta, kind, factor=float(scaling["factor"]))
    return Rope(
        theta,
        kind,
        factor=float(scaling["factor"]),
        low_freq_factor=float(scaling["low_freq_factor"]),
        high_freq_factor=float(scaling["high_freq_factor"]),
        original_context=int(
            scaling.get("original_max_position_embeddings") or config["max_position_embeddings"]
        ),
    )
