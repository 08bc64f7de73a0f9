"""The first message to the ranks of a trainer: whole sections of the config."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from areal_sdk.config import RunSection, TrainerSection
from areal_sdk.models.families import stored_dtype
from areal_sdk.trainer import PresetSpec
from areal_sdk.types import UpdateContents

JSON = Any

NUM_PUBLISHED = 2
"""Number of versions that are kept for engines: one that they read, and one that is being written."""


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """The settings of a trainer, the same on every rank."""

    model_dir: Path
    """A transformers checkpoint: config.json, safetensors, tokenizer."""
    run: RunSection = field(default_factory=RunSection)
    trainer: TrainerSection = field(default_factory=TrainerSection)
    preset: PresetSpec = field(default_factory=PresetSpec)
    """The preset that `algorithm.name` names."""
    fine_tunes: bool = False
    """Whether the run fine-tunes: all its steps learn from data (`learn`). In other runs such steps are a warm-up."""
    learns_rewards: bool = False
    """Whether the model is a reward model: a sequence has a reward in place of a logprob."""
    publish_dtype: str = "bfloat16"
    """The dtype that the engine samples with."""
    publishes: UpdateContents = "all"
    publish_dir: Path | None = None
    """Directory for published weights; the main process chooses it when it starts the ranks."""

    @property
    def published_size(self) -> int:
        """Rough number of bytes of the published versions, with room for one more."""
        size = sum(file.stat().st_size for file in self.model_dir.glob("*.safetensors"))
        if self.publish_dtype == "float32" and stored_dtype(self.model_dir) != "float32":
            size *= 2
        return size * (NUM_PUBLISHED + 1)

    def to_json(self) -> JSON:
        return _ADAPTER.dump_python(self, mode="json")

    @classmethod
    def from_json(cls, values: JSON) -> "TrainerSpec":
        """The specification that `to_json` wrote.

        >>> spec = TrainerSpec(Path("models/tiny"), trainer=TrainerSection(ranks=2))
        >>> TrainerSpec.from_json(spec.to_json()) == spec
        True
        """
        return _ADAPTER.validate_python(values)


_ADAPTER = TypeAdapter(TrainerSpec)
