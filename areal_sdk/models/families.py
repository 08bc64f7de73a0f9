"""The checkpoints that the trainer trains, recognised by their files. Imports no torch.

The list is the only one: plans, `--dry-run`, `doctor`, the trainer and docs/models.md all use it. A
family is on it because a tiny random model of it, trained here, has the logprobs, gradients and names
of plain transformers (tests/fsdp/test_families.py, one case for each entry).
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from areal_sdk.errors import ConfigError
from areal_sdk.models.checkpoint import check_safetensors, stored_dtypes, stored_shapes
from areal_sdk.models.experts import is_routed

TRAINED_FAMILIES = (
    "arcee",
    "cohere",
    "cohere2",
    "ernie4_5",
    "exaone4",
    "gemma",
    "gemma2",
    "gemma3_text",
    "glm",
    "glm4",
    "granite",
    "helium",
    "hunyuan_v1_dense",
    "llama",
    "ministral",
    "mistral",
    "mixtral",
    "olmo",
    "olmo2",
    "olmo3",
    "olmoe",
    "phi3",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "seed_oss",
    "smollm3",
    "starcoder2",
    "vaultgemma",
)
"""The trained families: values of `model_type` in config.json."""

_LAYER_WEIGHT = re.compile(r"\.layers\.\d+\..*?(\w+)\.weight$")

_REASONS = {
    "gemma3": ", which also see; save the text part by itself (docs/models.md shows how) and train that",
    "gpt_oss": ", whose attention leaves a share of each token's weight to no token (sinks)",
}
"""Reasons why families that users ask for are not trained, with a way out if there is one."""

_CAPS = ("final_logit_softcapping", "attn_logit_softcapping")
_CAPPED = ("gemma2", "vaultgemma")
"""The families whose caps on logits and attention scores the trainer computes. The configurations of other families have
these fields too, and leave them unset."""

_ROPE_OF_LENGTH = ("dynamic", "longrope", "su")
"""Rotary scalings that depend on the longest position of a row: the trainer packs samples of all
lengths into one row, so that a short sample would be rotated as a long one."""


def check_trained(directory: Path) -> None:
    """Raise ConfigError, with the reason and what to do, unless the trainer trains this checkpoint."""
    check_speaks(directory)
    config = read_config(directory)
    problem = _problem(config)
    if problem is not None:
        raise ConfigError(
            f"{directory}: the trainer does not train {problem}; it trains these "
            f"families: {', '.join(TRAINED_FAMILIES)}"
        )
    check_safetensors(directory)


def check_heads(directory: Path, sequence_ranks: int) -> None:
    """Raise ConfigError unless `sequence_ranks` ranks can share the heads of this checkpoint's attention."""
    config = read_config(directory)
    heads = config["num_attention_heads"]
    counts = {
        "num_attention_heads": int(heads),
        "num_key_value_heads": int(config.get("num_key_value_heads") or heads),
    }
    for name, count in counts.items():
        if count % sequence_ranks:
            raise ConfigError(
                f"trainer.sequence_ranks = {sequence_ranks} does not divide the {count} heads of "
                f"{directory} ({name} in config.json): choose a divisor, because ranks that compute "
                "a row together take equally many heads"
            )


def is_reward_model(directory: Path) -> bool:
    """Whether the checkpoint is a reward model: it judges sequences and cannot sample."""
    classes = read_config(directory).get("architectures") or ()
    return any(str(name).endswith("ForSequenceClassification") for name in classes)


def check_reward_model(directory: Path) -> None:
    """Raise ConfigError unless the checkpoint is a reward model."""
    if not is_reward_model(directory):
        raise ConfigError(
            f"{directory} is no reward model: give a run of `areal-sdk reward-model`, or its export"
        )


def check_speaks(directory: Path) -> None:
    """Raise ConfigError for a reward model where a policy is wanted."""
    if is_reward_model(directory):
        raise ConfigError(
            f"{directory} is a reward model, which generates no text: use it as a reward "
            "([reward.model] path), and give the model that it was trained from"
        )


def stored_dtype(directory: Path) -> str:
    """The dtype that config.json names, else that of most tensors: `float32`, `bfloat16` or `float16`."""
    config = read_config(directory)
    found = list(stored_dtypes(directory).values())
    held = max(found, key=found.count, default="float32")
    named = str(config.get("dtype") or config.get("torch_dtype") or held).removeprefix("torch.")
    return named if named in ("bfloat16", "float16") else "float32"


def adapted_layers(directory: Path, targets: Sequence[str]) -> list[str]:
    """The names, such as `q_proj`, of the linear layers that `trainer.lora.targets` means.

    ConfigError for a name that no linear layer of this checkpoint's decoder has. Experts are no linear
    layers: their matrices are parts of one parameter.
    """
    family = str(read_config(directory).get("model_type"))
    found, routed = set[str](), set[str]()
    for name, shape in stored_shapes(directory).items():
        if len(shape) == 2 and (match := _LAYER_WEIGHT.search(name)):
            (routed if is_routed(family, name) else found).add(match[1])
    if targets == "all-linear":
        return sorted(found)
    if reached := sorted(set(targets) & routed - found):
        raise ConfigError(
            f"trainer.lora.targets: {', '.join(reached)} of {directory} are in its experts and their router, "
            f"which an adapter does not reach: choose of {', '.join(sorted(found))}, or train all "
            "weights (trainer.lora.rank = 0)"
        )
    if unknown := sorted(set(targets) - found):
        raise ConfigError(
            f"trainer.lora.targets: no linear layer of {directory} is named {', '.join(unknown)}; "
            f"it has {', '.join(sorted(found))}"
        )
    return sorted(targets)


def logit_scale(config: Any) -> float:
    """The factor of the logits before the softmax in a trained family.

    `config` is the attribute view that transformers gives of config.json.
    """
    if config.model_type in ("cohere", "cohere2"):
        return float(config.logit_scale)
    if config.model_type == "granite":
        return 1.0 / float(config.logits_scaling)
    return 1.0


def logit_cap(config: Any) -> float | None:
    """The cap that the model puts on its logits, or None; `config` is as in `logit_scale`."""
    return config.final_logit_softcapping if config.model_type in _CAPPED else None


def max_context_of(directory: Path) -> int | None:
    """The longest context that the model was made for, in tokens; None if config.json names none."""
    config = read_config(directory)
    own: int | None = (config.get("text_config") or config).get("max_position_embeddings")
    return own


def read_config(directory: Path) -> dict[str, Any]:
    """The configuration of the checkpoint in `directory`; ConfigError if it has none."""
    if not (path := directory / "config.json").is_file():
        raise ConfigError(f"{directory} is not a model directory: it has no config.json")
    return read_optional(path)


def stop_tokens(directory: Path) -> tuple[int, ...]:
    """The model's own end tokens: those of config, generation config and tokenizer together.

    Base checkpoints often name the end of text in one file and the end of a chat turn in another.
    """
    config = read_optional(directory / "config.json")
    found: set[int] = set()
    for source in (
        config,
        config.get("text_config", {}),
        read_optional(directory / "generation_config.json"),
    ):
        eos = source.get("eos_token_id")
        found.update(eos if isinstance(eos, list) else [] if eos is None else [eos])
    text = read_optional(directory / "tokenizer_config.json").get("eos_token")
    text = text.get("content") if isinstance(text, dict) else text
    added = read_optional(directory / "tokenizer.json").get("added_tokens") or ()
    found.update(int(token["id"]) for token in added if token["content"] == text)
    return tuple(sorted(found))


def read_optional(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty if there is no file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except json.JSONDecodeError as exc:
        raise ConfigError(f"{path} is not JSON: {exc}") from None
    return content if isinstance(content, dict) else {}


def _problem(config: dict[str, Any]) -> str | None:
    model_type = config.get("model_type")
    if model_type not in TRAINED_FAMILIES:
        return f"{model_type!r} models{_REASONS.get(str(model_type), '')}"
    kinds = set(config.get("layer_types") or ()) - {"full_attention", "sliding_attention"}
    if kinds:
        return f"{model_type!r} models with layers of the kinds {', '.join(sorted(kinds))}"
    if config.get("use_bidirectional_attention"):
        return f"{model_type!r} models whose tokens see later ones (use_bidirectional_attention)"
    capped = [name for name in _CAPS if config.get(name) is not None]
    if capped and model_type not in _CAPPED:
        return f"{model_type!r} models whose logits are capped ({capped[0]})"
    if config.get("quantization_config"):
        return "quantized weights"
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    # Families with windows may have a table for each kind of layer.
    for table in (rope, *(value for value in rope.values() if isinstance(value, dict))):
        kind = table.get("rope_type") or table.get("type")
        if kind in _ROPE_OF_LENGTH:
            return f"rotary embeddings that depend on the length of the text (rope_type {kind!r})"
    return None
