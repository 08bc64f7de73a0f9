"""What a trainer is told when it starts. Light: the main process makes it, the ranks read it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from areal_sdk.models.families import stored_dtype

JSON = Any

NUM_PUBLISHED = 2
"""Versions kept for engines: the one they read, and the one being written."""


@dataclass(frozen=True, slots=True)
class SftRow:
    """A demonstration: tokens, and which of them to imitate."""

    tokens: tuple[int, ...]
    loss_mask: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class TrainerOptions:
    """The same on every rank."""

    model_dir: Path
    """A transformers checkpoint: config.json, safetensors, tokenizer."""
    precision: str = "bfloat16"
    """Of the matrix products: `bfloat16` (autocast) or `float32`. Master weights are float32."""
    device: str = "auto"
    """`cpu`, `cuda`, or `auto`: cuda where there is one."""
    num_ranks: int = 1
    threads: int = 1
    seed: int = 0
    learning_rate: float = 2e-5
    warmup_steps: int = 5
    """Optimiser steps over which the learning rate rises to its value."""
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.999)
    """The second remembers the large gradients of the start: with a short memory, a nearly solved
    task's tiny, noisy gradients would be scaled up to full steps and undo what was learned."""
    max_grad_norm: float = 1.0
    num_minibatches: int = 1
    tokens_per_microbatch: int = 4096
    """Bounds memory (about 1.2 MB a token for SmolLM2); larger is not faster on a CPU."""
    algorithm: str = "areal_sdk.algorithms.presets:grpo"
    """A reference to the preset, as `process.user_code` reads it: it may stand in a user's file."""
    clip_low: float = 0.2
    clip_high: float = 0.28
    max_weight: float = 5.0
    proximal: str = "recompute"
    discount: float = 1.0
    max_surprise: float = 5.0
    share_prompts: bool = True
    sft_learning_rate: float = 1e-3
    deterministic: bool = False
    publish_dtype: str = "bfloat16"
    """What the engine samples with."""
    publish_dir: Path | None = None
    """Where the main process wants published weights; it chooses when it starts the ranks."""
    collective_timeout_s: float = 600.0
    """Ranks wait this long for one another before the step fails."""

    @property
    def published_size(self) -> int:
        """About how many bytes the published versions take, with one to spare."""
        size = sum(file.stat().st_size for file in self.model_dir.glob("*.safetensors"))
        if self.publish_dtype == "float32" and stored_dtype(self.model_dir) != "float32":
            size *= 2
        return size * (NUM_PUBLISHED + 1)

    def to_json(self) -> dict[str, JSON]:
        return {
            key: str(value) if isinstance(value, Path) else value
            for key, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, values: Mapping[str, JSON]) -> Self:
        """
        >>> options = TrainerOptions(Path("models/tiny"), num_ranks=2)
        >>> TrainerOptions.from_json(options.to_json()) == options
        True
        """
        known = {field.name for field in fields(cls)}
        given = {key: value for key, value in values.items() if key in known}
        given["model_dir"] = Path(given["model_dir"])
        given["betas"] = tuple(given["betas"])
        if given["publish_dir"] is not None:
            given["publish_dir"] = Path(given["publish_dir"])
        return cls(**given)
