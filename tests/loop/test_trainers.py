"""From the settings to the trainer's ranks."""

from pathlib import Path

import pytest

from areal_sdk.config import parse_config
from areal_sdk.launch import LocalLauncher, TorchrunLauncher
from areal_sdk.loop.trainers import _launcher, make_trainer
from areal_sdk.plugins import load_plugins
from areal_sdk.trainer.client import START_TIMEOUT_S


@pytest.mark.parametrize("name", ["local", "torchrun"])
async def test_ranks_may_take_long_to_load_a_large_model(tmp_path: Path, name: str) -> None:
    config = parse_config({"trainer": {"launcher": name}})
    launcher = await _launcher(config, tmp_path, lambda text: None)
    assert isinstance(launcher, (LocalLauncher, TorchrunLauncher))
    assert launcher.start_timeout_s == START_TIMEOUT_S
    await launcher.aclose()


async def test_the_bounds_of_credit_reach_the_trainer(tmp_path: Path) -> None:
    algorithm = {"name": "running_baseline", "discount": 0.5, "max_surprise": 3.0}
    config = parse_config({"algorithm": algorithm})
    client = await make_trainer(
        config, tmp_path, plugins=load_plugins(), log_dir=tmp_path, say=lambda text: None
    )
    assert (client.options.discount, client.options.max_surprise) == (0.5, 3.0)
    await client.aclose()
