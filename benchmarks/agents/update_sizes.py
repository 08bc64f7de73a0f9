"""A plugin: the bytes of every weight update, one line each, in the file that `UPDATE_SIZES` names."""

import os
from pathlib import Path

import areal_sdk
from areal_sdk import WeightUpdate


@areal_sdk.hookimpl
def on_weights(update: WeightUpdate) -> None:
    if update.path is not None:
        with Path(os.environ["UPDATE_SIZES"]).open("a") as file:
            file.write(f"{Path(update.path).stat().st_size}\n")
