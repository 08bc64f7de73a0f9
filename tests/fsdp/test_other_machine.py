"""Ranks that do not share memory or disks with the main process, as on another machine."""

import asyncio
import os
import shlex
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file

from areal_sdk.errors import ConfigError, ProcessError
from areal_sdk.fsdp import trainer as client_module
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.trainer import FSDPTrainer
from areal_sdk.launch.torchrun import TorchrunLauncher
from areal_sdk.process.network.listen import Listener
from areal_sdk.types import WeightUpdate
from tests.backends.remote.elsewhere import OWN_MOUNTS, can_mount

from .episodes import make_groups
from .specs import trainer_spec

pytestmark = pytest.mark.skipif(
    not can_mount(), reason="mount namespaces stand in for machines: they take root and `unshare`"
)


@pytest.fixture
def spec(model_dir: Path) -> TrainerSpec:
    spec = trainer_spec(model_dir, precision="float32", device="cpu", learning_rate=1e-3)
    return replace(spec, publish_dtype="float32")


def start_rank(launcher: TorchrunLauncher, hidden: list[str]) -> "subprocess.Popen[bytes]":
    token, *_, address = launcher.command.split()
    mounts = [f"mount -t tmpfs none {shlex.quote(path)}" for path in hidden]
    rank = shlex.join([sys.executable, "-m", "areal_sdk.launch.torchrun", address])
    return subprocess.Popen(
        [*OWN_MOUNTS, "sh", "-c", " && ".join([*mounts, f"exec {rank}"])],
        env={**os.environ, "AREAL_SDK_TOKEN": token.partition("=")[2], "RANK": "0"},
    )


@asynccontextmanager
async def elsewhere(
    spec: TrainerSpec, run_dir: Path, *, hidden: list[str]
) -> AsyncIterator[FSDPTrainer]:
    """A trainer whose one rank sees empty directories in place of the `hidden` ones."""
    launcher = TorchrunLauncher(await Listener.open(), log_dir=run_dir / "logs", timeout_s=120)
    process = start_rank(launcher, hidden)

    client = FSDPTrainer(spec, log_dir=run_dir / "logs", launcher=launcher)
    try:
        await client.start()
        yield client
    finally:
        await client.aclose()
        await launcher.aclose()
        process.kill()
        await asyncio.to_thread(process.wait)


async def test_weights_reach_a_main_process_that_shares_no_memory_with_its_trainer(
    spec: TrainerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "CHUNK_BYTES", 100_000)
    async with elsewhere(spec, tmp_path, hidden=["/dev/shm"]) as client:
        updates = []
        for version in (1, 2, 3):
            await client.step(make_groups(seed=version), version=version - 1, timeout_s=60)
            updates.append(await client.publish(version))
            await client.export(tmp_path / f"v{version}")
            check_arrived(updates[-1], version, exported=tmp_path / f"v{version}")
        assert len({update.checksum for update in updates}) == 3
        assert updates[0].path != updates[1].path, "the version before stays readable"
    assert not any(is_there(update) for update in updates)


def check_arrived(update: WeightUpdate, version: int, *, exported: Path) -> None:
    assert update.version == version
    assert update.path is not None
    assert update.checksum == f"crc32:{zlib.crc32(Path(update.path).read_bytes()):08x}"
    arrived, expected = load_file(update.path), load_file(exported / "model.safetensors")
    assert arrived.keys() == expected.keys()
    assert all(arrived[name].equal(tensor) for name, tensor in expected.items())


def is_there(update: WeightUpdate) -> bool:
    return update.path is not None and Path(update.path).exists()


async def test_weights_that_arrive_damaged_are_refused(
    spec: TrainerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zlib, "crc32", lambda data, value=0: 7)  # of this process, not the rank's
    async with elsewhere(spec, tmp_path, hidden=["/dev/shm"]) as client:
        with pytest.raises(ProcessError, match="version 1 arrived damaged"):
            await client.publish(1)


async def test_a_rank_that_does_not_see_the_run_directory_says_so_at_its_start(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with pytest.raises(ConfigError, match=rf"does not see the run directory {run}.*run\.dir"):
        async with elsewhere(spec, run, hidden=[str(run)]):
            raise AssertionError("it started")


async def test_a_rank_that_does_not_see_the_model_says_so_at_its_start(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "mine").symlink_to(spec.model_dir)
    spec = replace(spec, model_dir=models / "mine")
    with pytest.raises(ConfigError, match=rf"does not see the model {models / 'mine'}"):
        async with elsewhere(spec, tmp_path, hidden=[str(models)]):
            raise AssertionError("it started")
