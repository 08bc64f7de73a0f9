"""Specifications of the trainers in these tests."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.trainer import PresetSpec


def trainer_spec(model_dir: Path, **settings: Any) -> TrainerSpec:
    """The defaults but for these `settings` of `[trainer]`."""
    return TrainerSpec(model_dir, trainer=TrainerSection(**settings))


def changed(spec: TrainerSpec, **settings: Any) -> TrainerSpec:
    """`spec` with these `settings` of `[trainer]` in place of its own."""
    return replace(spec, trainer=TrainerSection(**{**spec.trainer.model_dump(), **settings}))


def with_preset(spec: TrainerSpec, name: str, **options: Any) -> TrainerSpec:
    """`spec` with a built-in algorithm and these options of its table."""
    return replace(spec, preset=PresetSpec(f"areal_sdk.algorithms.presets:{name}", options))


EVERYTHING = f"{Path(__file__).with_name('everything.py')}::everything"
