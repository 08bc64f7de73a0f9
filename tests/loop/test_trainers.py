"""From the settings to the trainer's ranks."""

from pathlib import Path

import pytest

from areal_sdk.config import parse_config
from areal_sdk.launch import LocalLauncher, TorchrunLauncher
from areal_sdk.loop.trainers import _launcher
from areal_sdk.trainer.client import START_TIMEOUT_S


@pytest.mark.parametrize("name", ["local", "torchrun"])
async def test_ranks_may_take_long_to_load_a_large_model(tmp_path: Path, name: str) -> None:
    config = parse_config({"trainer": {"launcher": name}})
    launcher = await _launcher(config, tmp_path, lambda text: None)
    assert isinstance(launcher, (LocalLauncher, TorchrunLauncher))
    assert launcher.start_timeout_s == START_TIMEOUT_S
    await launcher.aclose()
