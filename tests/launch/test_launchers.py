"""Ranks are placed together or not at all, and know who they are."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from areal_sdk.errors import ProcessError, RemoteError
from areal_sdk.launch import LocalLauncher
from areal_sdk.launch.torchrun import TorchrunLauncher
from areal_sdk.launcher import first_exit
from areal_sdk.process import Child, ProcessSpec
from areal_sdk.process.network.listen import Listener
from tests.toolbox.processes import children_of_this_process

RANK = "tests.process.entries:rank"


def ranks(count: int, **args: str) -> list[ProcessSpec]:
    return [ProcessSpec(f"trainer-{rank}", RANK, args) for rank in range(count)]


async def close(children: list[Child]) -> None:
    await asyncio.gather(*(child.aclose(grace_s=1.0) for child in children))


async def test_local_ranks_share_a_master_and_know_their_number(tmp_path: Path) -> None:
    children = await LocalLauncher(log_dir=tmp_path).launch(ranks(3))
    places = [child.hello for child in children]
    assert [place["RANK"] for place in places] == ["0", "1", "2"]
    assert {place["WORLD_SIZE"] for place in places} == {"3"}
    assert len({(place["MASTER_ADDR"], place["MASTER_PORT"]) for place in places}) == 1
    assert [child.log_path.name for child in children] == [f"trainer-{i}.log" for i in range(3)]
    await close(children)


async def test_if_one_rank_cannot_start_none_stays(tmp_path: Path) -> None:
    others = children_of_this_process()
    with pytest.raises(RemoteError, match=r"trainer-1 failed to start.*no such device"):
        await LocalLauncher(log_dir=tmp_path).launch(ranks(3, fails="1"))
    assert children_of_this_process() <= others


async def test_the_death_of_any_rank_is_noticed(tmp_path: Path) -> None:
    children = await LocalLauncher(log_dir=tmp_path).launch(ranks(2))
    os.kill(children[1].pid, signal.SIGKILL)
    async with asyncio.timeout(60.0):
        assert await first_exit(children) is children[1]
    await close(children)


def start_rank(rank: int, listener: Listener) -> "subprocess.Popen[str]":
    environment = {**os.environ, "AREAL_SDK_TOKEN": listener.token, "RANK": str(rank)}
    command = [sys.executable, "-m", "areal_sdk.launch.torchrun", listener.address]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


async def test_ranks_that_connect_get_the_spec_of_their_number(tmp_path: Path) -> None:
    launcher = TorchrunLauncher(await Listener.open(), log_dir=tmp_path, timeout_s=20)
    processes = [start_rank(rank, launcher._listener) for rank in (1, 0)]
    children = await launcher.launch(ranks(2))
    assert [child.name for child in children] == ["trainer-0", "trainer-1"]
    assert [child.hello["RANK"] for child in children] == ["0", "1"]
    await close(children)
    await launcher.aclose()
    for process in processes:
        _, said = await asyncio.to_thread(process.communicate, timeout=60)
        assert process.returncode == 0
        assert "RuntimeWarning" not in said, "the module that torchrun runs was imported before"


async def test_torchrun_takes_in_trainer_ranks_only(tmp_path: Path) -> None:
    launcher = TorchrunLauncher(await Listener.open(), log_dir=tmp_path)
    children = await launcher.launch([ProcessSpec("engine", RANK, {})])
    assert children[0].log_path == tmp_path / "engine.log"
    await close(children)
    await launcher.aclose()


async def test_missing_ranks_are_named(tmp_path: Path) -> None:
    launcher = TorchrunLauncher(await Listener.open(), log_dir=tmp_path, timeout_s=0.1)
    with pytest.raises(ProcessError, match=r"2 of 2 processes.*: rank-0, rank-1"):
        await launcher.launch(ranks(2))
    assert launcher.command.startswith("AREAL_SDK_TOKEN=")
    await launcher.aclose()


async def test_a_rank_that_connects_has_a_limit_of_its_own_to_load(tmp_path: Path) -> None:
    launcher = TorchrunLauncher(
        await Listener.open(), log_dir=tmp_path, timeout_s=20, start_timeout_s=0.2
    )
    process = start_rank(0, launcher._listener)
    with pytest.raises(ProcessError, match=r"trainer-0 .*0\.2 s"):
        await launcher.launch(ranks(1, loads_for_s="60"))
    await launcher.aclose()
    process.kill()
    process.communicate()


@pytest.mark.slow
async def test_real_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    launcher = TorchrunLauncher(await Listener.open(), log_dir=tmp_path, timeout_s=60)
    token, _torchrun, *arguments = launcher.command.replace("N -m", "2 -m").split()
    environment = {**os.environ, "AREAL_SDK_TOKEN": token.partition("=")[2]}
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    process = await asyncio.create_subprocess_exec(*command, env=environment)
    children = await launcher.launch(ranks(2))
    assert [child.hello["LOCAL_RANK"] for child in children] == ["0", "1"]
    await close(children)
    await launcher.aclose()
    async with asyncio.timeout(30):
        assert await process.wait() == 0


def test_a_rank_started_by_hand_is_told_how() -> None:
    command = [sys.executable, "-m", "areal_sdk.launch.torchrun"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert "torchrun --nproc-per-node N -m areal_sdk.launch.torchrun HOST:PORT" in result.stderr


def test_a_process_of_a_launcher_that_is_started_by_hand_is_told_how() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "areal_sdk.join"], capture_output=True, text=True
    )
    assert result.returncode == 2
    assert "python -m areal_sdk.join HOST:PORT NAME" in result.stderr
