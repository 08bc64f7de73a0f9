"""The calculator, and a copy of every version of the weights where `KEEP_WEIGHTS` says."""

import importlib.util
import os
import shutil
from pathlib import Path

import areal_sdk
from areal_sdk import WeightUpdate

_PATH = Path(__file__).parents[2] / "examples" / "agents" / "calculator.py"
_SPEC = importlib.util.spec_from_file_location("calculator_example", _PATH)
assert _SPEC is not None
assert _SPEC.loader is not None
calculator = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(calculator)
tasks = calculator.tasks


class KeptCalculator(calculator.Calculator):
    """The same agent."""


@areal_sdk.hookimpl
def on_weights(update: WeightUpdate) -> None:
    if update.path is not None:
        shutil.copy(
            update.path, Path(os.environ["KEEP_WEIGHTS"]) / f"v{update.version}.safetensors"
        )
