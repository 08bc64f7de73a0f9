"""From the settings to the trainer's ranks."""

import json
import shutil
from pathlib import Path

import pytest

from areal_sdk.config import parse_config
from areal_sdk.fsdp.trainer import START_TIMEOUT_S
from areal_sdk.launch import LocalLauncher, TorchrunLauncher
from areal_sdk.loop.services import _launcher, make_trainer
from areal_sdk.models import resolve_model
from areal_sdk.plugins import load_plugins


@pytest.mark.parametrize("name", ["local", "torchrun"])
async def test_ranks_may_take_long_to_load_a_large_model(tmp_path: Path, name: str) -> None:
    config = parse_config({"trainer": {"launcher": name}})
    launcher = await _launcher(config, tmp_path, lambda text: None)
    assert isinstance(launcher, (LocalLauncher, TorchrunLauncher))
    assert launcher.start_timeout_s == START_TIMEOUT_S
    await launcher.aclose()


async def test_the_bounds_of_credit_reach_the_trainer(tmp_path: Path) -> None:
    bounds = {"discount": 0.5, "max_surprise": 3.0}
    algorithm = {"name": "running_baseline", "running_baseline": bounds}
    config = parse_config({"algorithm": algorithm})
    client = await make_trainer(
        config, resolve_model("tiny"), plugins=load_plugins(), log_dir=tmp_path, say=print
    )
    assert client.spec.preset.options == bounds
    assert client.spec.preset.reference.endswith(":running_baseline")
    await client.aclose()


@pytest.mark.parametrize("asked", ["auto", "float32", "bfloat16"])
@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
async def test_weights_are_published_in_the_dtype_of_the_checkpoint_unless_one_is_asked_for(
    stored: str, asked: str, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(resolve_model("tiny"), tmp_path / "model"))
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "dtype": stored}))
    trainer = await make_trainer(
        parse_config({"engine": {"dtype": asked}}),
        model,
        plugins=load_plugins(),
        log_dir=tmp_path,
        say=print,
    )
    assert trainer.spec.publish_dtype == (stored if asked == "auto" else asked)
