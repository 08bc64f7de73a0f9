"""A plugin: a copy of every version of the weights that the engine served, where `KEEP_WEIGHTS` says."""

import os
import shutil
from pathlib import Path

import areal_sdk
from areal_sdk import WeightUpdate


@areal_sdk.hookimpl
def on_weights(update: WeightUpdate) -> None:
    kept = Path(os.environ["KEEP_WEIGHTS"]) / f"v{update.version}.safetensors"
    if update.path is None:  # a step without a gradient: a new number for the same weights
        kept.with_suffix(".same").touch()
    else:
        shutil.copy(update.path, kept)
