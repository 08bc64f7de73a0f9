"""Tiny checkpoints of every family of models, with random weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from areal_sdk.models.families import TRAINED_FAMILIES
from areal_sdk.models.tiny import make_tiny_model

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "max_position_embeddings": 128,
}
MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
WINDOW = {"sliding_window": 5, "layer_types": ["sliding_attention", "full_attention"]}
"""Shorter than the rows of the tests."""
CAPPED = {
    "query_pre_attn_scalar": 16,
    "attn_logit_softcapping": 0.5,
    "final_logit_softcapping": 1.0,
    **WINDOW,
}
"""Caps so low that all logits feel them."""
OWN: Mapping[str, Mapping[str, Any]] = {
    # What these families have beside the common sizes: numbers that a mistake would show in.
    "cohere": {"logit_scale": 0.25},
    "cohere2": {"logit_scale": 0.25, **WINDOW},
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    "gemma2": CAPPED,
    "gemma3_text": {"query_pre_attn_scalar": 16, **WINDOW},
    "granite": {
        "logits_scaling": 8.0,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "attention_multiplier": 0.0078125,
    },
    "ministral": WINDOW,
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "olmo3": WINDOW,
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 4},
    "qwen2_moe": {**MIXTURE, "shared_expert_intermediate_size": 40},
    "qwen3_moe": MIXTURE,
    "vaultgemma": CAPPED,
}
VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    **{family: (family, {}) for family in TRAINED_FAMILIES},
    "gemma2, without caps": (
        "gemma2",
        {"attn_logit_softcapping": None, "final_logit_softcapping": None},
    ),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biased": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "exaone4, window": ("exaone4", WINDOW),
    "qwen3_moe, weights that add up to one": ("qwen3_moe", {"norm_topk_prob": True}),
    "qwen3_moe, dense layers among others": ("qwen3_moe", {"mlp_only_layers": [0]}),
    "qwen3_moe, a loss that balances experts": (
        "qwen3_moe",
        {"output_router_logits": True, "router_aux_loss_coef": 1.0},
    ),
    "qwen3_moe, idle experts": ("qwen3_moe", {"num_experts": 64, "num_experts_per_tok": 1}),
    "mistral, window": ("mistral", {"sliding_window": 5}),
    "phi3, window": ("phi3", {"sliding_window": 5}),
    "qwen2, window": ("qwen2", {"use_sliding_window": True, "max_window_layers": 1, **WINDOW}),
    "qwen3, window": ("qwen3", {"use_sliding_window": True, "max_window_layers": 1, **WINDOW}),
    "smollm3, window": ("smollm3", {"use_sliding_window": True, **WINDOW}),
    "starcoder2, window": ("starcoder2", {"sliding_window": 5}),
    "qwen3, yarn": (
        "qwen3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
}


def saved(directory: Path, family: str, **fields: Any) -> Path:
    """A tiny checkpoint, every tensor of it random: what is forgotten shows."""
    config = AutoConfig.for_model(family, **{**SIZE, **OWN.get(family, {}), **fields})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape)
            is_scale = "norm" in name and not name.endswith("bias")
            parameter.copy_(1 + 0.2 * noise if is_scale else 0.15 * noise)
    model.save_pretrained(directory)
    return directory


def edited(directory: Path, **fields: Any) -> Path:
    """The same checkpoint with other words in config.json."""
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    return directory


def tiny_mixture(directory: Path) -> Path:
    make_tiny_model(directory)  # a tokenizer of 263 tokens
    return saved(
        directory,
        "qwen3_moe",
        vocab_size=263,
        hidden_size=64,
        head_dim=16,
        num_experts=8,
        max_position_embeddings=4096,
    )
