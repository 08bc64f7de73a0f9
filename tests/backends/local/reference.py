"""Tiny random checkpoints of every supported family, and the plain forward they are compared with."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from areal_sdk.backends.local.core import EngineCore, SampledToken
from areal_sdk.backends.local.sequence import Sequence as Running
from areal_sdk.models.checkpoint import copy_all_but_weights

_SHAPE: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

MIXTURE: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "tie_word_embeddings": False},
    "llama-tied-biased": {
        "model_type": "llama",
        "tie_word_embeddings": True,
        "attention_bias": True,
        "mlp_bias": True,
    },
    "llama-3-rope": {"model_type": "llama", "rope_parameters": _LLAMA3_ROPE},
    "llama-linear-rope": {
        "model_type": "llama",
        "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    },
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "tie_word_embeddings": False, "head_dim": 32},
    "qwen3-tied": {"model_type": "qwen3", "tie_word_embeddings": True, "head_dim": 16},
    "qwen3-moe": {**MIXTURE, "head_dim": 16, "norm_topk_prob": True},
    "qwen3-moe-tied": {**MIXTURE, "head_dim": 16, "tie_word_embeddings": True},
}


def make_checkpoint(directory: Path, family: str = "qwen3", *, seed: int = 0) -> Path:
    """A checkpoint whose every tensor is random: a forgotten bias or norm shows."""
    options = {**_SHAPE, **FAMILIES[family]}
    config = AutoConfig.for_model(options.pop("model_type"), **options)
    generator = torch.Generator().manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name:
                parameter.copy_(1.0 + 0.2 * noise)
            else:
                parameter.copy_(0.15 * noise)
    model.save_pretrained(directory)
    return directory


def nudge(source: Path, target: Path, *, by: float = 0.05, seed: int = 1) -> Path:
    """Other weights of the same model, as a trainer would publish them: one file."""
    generator = torch.Generator().manual_seed(seed)
    tensors = load_file(source / "model.safetensors")
    for name, tensor in tensors.items():
        tensors[name] = tensor + by * torch.randn(tensor.shape, generator=generator)
    save_file(tensors, target)
    return target


def load_served(directory: Path, update: Path | None = None) -> Any:
    """The model that engines compute from a checkpoint after `update`, a file of all its tensors or
    of those that changed."""
    if update is None:
        return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with TemporaryDirectory() as temporary:
        whole = Path(temporary)
        copy_all_but_weights(directory, whole)
        tensors = load_file(directory / "model.safetensors") | load_file(update)
        save_file(tensors, whole / "model.safetensors", metadata={"format": "pt"})
        return AutoModelForCausalLM.from_pretrained(whole, dtype=torch.float32)


class Reference:
    """The transformers model, run over whole sequences without a cache."""

    def __init__(self, directory: Path, weights: Path | None = None) -> None:
        self.model = load_served(directory, weights).eval()

    @torch.no_grad()
    def logits(self, tokens: Sequence[int]) -> Tensor:
        """[len(tokens), V]"""
        logits: Tensor = self.model(torch.tensor([list(tokens)]), use_cache=False).logits[0]
        return logits

    def logprobs(
        self, prompt: Sequence[int], output: Sequence[int], *, temperature: float = 1.0
    ) -> list[float]:
        """log softmax(logits / T) of each output token after what precedes it."""
        logits = self.logits([*prompt, *output])[len(prompt) - 1 : -1]
        scores = (logits / temperature).log_softmax(-1)
        return [float(scores[i, token]) for i, token in enumerate(output)]


@dataclass
class Outcome:
    """The outcome of the core for one sequence."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    last: SampledToken | None = None


def run(core: EngineCore, *sequences: Running, max_steps: int = 100_000) -> list[Outcome]:
    """Step the core until the sequences are finished (or for `max_steps`)."""
    outcomes = {sequence: Outcome() for sequence in sequences}
    for _ in range(max_steps):
        if all(o.last is not None and o.last.finish is not None for o in outcomes.values()):
            break
        for sampled in core.step():
            outcome = outcomes.setdefault(sampled.sequence, Outcome())
            outcome.tokens.append(sampled.token)
            outcome.logprobs.append(sampled.logprob)
            outcome.versions.append(sampled.version)
            outcome.last = sampled
    return [outcomes[sequence] for sequence in sequences]
