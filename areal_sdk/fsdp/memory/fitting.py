"""The fit of a step into the memory of a rank: what is chosen before, and what helps afterwards. Imports no torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal_sdk.config import LoraSection, TrainerSection
from areal_sdk.fsdp.memory.predicted import Prediction, largest_context, predict
from areal_sdk.models.families import read_config, stored_dtype
from areal_sdk.shapes import ModelShape

RESERVE = 0.1
"""Part of a device's memory that is left for CUDA, NCCL and what allocation wastes."""
CURES: Mapping[str, Mapping[str, Any]] = {
    "trainer.activation_checkpointing=full": {"activation_checkpointing": "full"},
    "trainer.defer_gradient_sync=false": {"defer_gradient_sync": False},
    "trainer.lora.rank=16": {"lora": LoraSection(rank=16)},
}
"""Settings that save memory, as `--set` takes them, and what they change."""


@dataclass(frozen=True, slots=True)
class Fit:
    """A model and the settings of its trainer, against the bytes that each rank may take."""

    model: ModelShape
    settings: TrainerSection
    stored: str
    """The dtype of the weights in the checkpoint."""
    room: int

    @classmethod
    def of(cls, directory: Path, settings: TrainerSection, room: int) -> "Fit | None":
        """The fit of the model in a directory; None for an architecture that no formula covers."""
        try:
            shape = ModelShape.of(read_config(directory))
        except (KeyError, TypeError):
            return None
        return cls(shape, settings, stored_dtype(directory), room)

    def needs(self, num_tokens: int, settings: TrainerSection | None = None) -> Prediction:
        """The memory of a step with `num_tokens` at once."""
        settings = settings or self.settings
        return predict(self.model, settings, num_tokens=num_tokens, stored=self.stored)

    def longest(self, settings: TrainerSection) -> int:
        return largest_context(self.model, settings, memory=self.room, stored=self.stored)

    def chosen(self, num_tokens: int) -> TrainerSection:
        """The settings of the step. If the user leaves recomputation open, it is the least that makes room, or that of
        all layers if nothing does."""
        chosen = self.settings
        if chosen.activation_checkpointing == "auto":
            for which in ("none", "half", "full"):
                chosen = self.settings.model_copy(update={"activation_checkpointing": which})
                if self.needs(num_tokens, chosen).total <= self.room:
                    break
        return chosen

    def doubt(self, num_tokens: int) -> str:
        """The warning that a step is predicted not to fit; empty if it is predicted to fit."""
        needed = self.needs(num_tokens, self.chosen(num_tokens)).total
        if needed <= self.room:
            return ""
        return (
            f"a step with {num_tokens:,} tokens at once is predicted to take {needed / 1e9:.1f} GB on each rank, "
            f"which has {self.room / 1e9:.1f} GB: {self.ways_out(num_tokens)}"
        )

    def ways_out(self, num_tokens: int) -> str:
        """The settings to change, and how far, where a step with `num_tokens` at once has no room."""
        chosen = self.chosen(num_tokens)
        most, now = self.longest(chosen), chosen.tokens_per_microbatch
        ways = [f"set {cure}, with which {n:,} fit" for cure, n in self.cures(chosen, most)]
        if 0 < most < now:
            ways.insert(0, f"lower trainer.tokens_per_microbatch from {now:,} to {most:,}")
        if 0 < most < num_tokens and num_tokens > now:
            ways.insert(0, f"bound an episode to {most:,} tokens (rollout.max_episode_tokens)")
        return "; or ".join([*ways, "train on more GPUs (trainer.ranks)"])

    def cures(self, settings: TrainerSection, longest: int) -> Iterator[tuple[str, int]]:
        """Settings with which more than `longest` tokens fit, each with the number of tokens."""
        for cure, change in CURES.items():
            more = self.longest(settings.model_copy(update=dict(change)))
            if more > longest:
                yield cure, more
