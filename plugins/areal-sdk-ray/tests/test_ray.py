"""Processes on the nodes of a real Ray cluster."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from areal_sdk.errors import ChildDiedError, ConfigError, ProcessError, RemoteError
from areal_sdk.launcher import Child, LauncherSetup, ProcessSpec, Reservation, first_exit
from areal_sdk.testing import launcher_setup
from areal_sdk_ray.driver import COMPARED, check_versions, own_versions
from areal_sdk_ray.launcher import RayLauncher, open_ray
from areal_sdk_ray.local_cluster import ray_cluster

on_a_cluster = pytest.mark.long

GONE_WITHIN_S = 60.0
"""Seconds for a process to end with its host."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Five nodes with one processor each."""
    with ray_cluster(5, cpus=1) as address:
        yield address


@pytest.fixture
async def launcher(address: str, tmp_path: Path) -> AsyncIterator[RayLauncher]:
    launcher = await open_ray(setup_of(address, tmp_path))
    yield launcher
    await launcher.aclose()


def setup_of(address: str, log_dir: Path) -> LauncherSetup:
    return launcher_setup(log_dir, launcher="ray", address=address, placement_timeout_s=2)


def ranks(
    count: int, name: str = "", *, reserves: Reservation | None = None, **args: str
) -> list[ProcessSpec]:
    """Processes of `entries.py`, which Python finds beside this file."""
    return [
        ProcessSpec(
            name or f"trainer-{rank}",
            "entries:rank",
            args,
            env={"PYTHONPATH": str(Path(__file__).parent)},
            reserves=reserves or Reservation(),
        )
        for rank in range(count)
    ]


async def close(children: list[Child]) -> None:
    await asyncio.gather(*(child.aclose(grace_s=2.0) for child in children))


def is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def gone(pid: int) -> None:
    deadline = time.monotonic() + GONE_WITHIN_S
    while is_there(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        await asyncio.sleep(0.05)


@on_a_cluster
async def test_ranks_on_several_nodes_share_a_master_and_die_alone(
    launcher: RayLauncher, tmp_path: Path
) -> None:
    children = await launcher.launch(ranks(5))
    places = [child.hello for child in children]
    assert [place["RANK"] for place in places] == ["0", "1", "2", "3", "4"]
    assert len({(place["MASTER_ADDR"], place["MASTER_PORT"]) for place in places}) == 1
    assert [child.log_path for child in children] == [
        tmp_path / f"trainer-{i}.log" for i in range(5)
    ]

    os.kill(children[1].pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        assert await first_exit(children) is children[1]

    # The room of all five is taken until the job has ended: then another one fits.
    with pytest.raises(
        ProcessError, match="no room for engine within 2 s: other jobs, or the rest"
    ):
        await launcher.launch(ranks(1, "engine"))
    await close(children)
    await close(await launcher.launch(ranks(1, "engine")))


@on_a_cluster
async def test_what_the_cluster_does_not_have_is_named_at_once(launcher: RayLauncher) -> None:
    with pytest.raises(ProcessError, match="trainer-0 needs 2 CPUs on one node, the largest has 1"):
        await launcher.launch(ranks(1, reserves=Reservation(cpus=2)))
    with pytest.raises(
        ProcessError, match=r"6 processes need 6 CPUs \(1 CPU each\), and only 5 of"
    ):
        await launcher.launch(ranks(6))
    with pytest.raises(ProcessError, match="needs 8 GPUs on one node, the largest has 0"):
        await launcher.launch(ranks(1, reserves=Reservation(gpus=8)))


@on_a_cluster
async def test_a_rank_that_fails_to_start_is_named_and_frees_the_room(
    launcher: RayLauncher,
) -> None:
    with pytest.raises(RemoteError, match=r"trainer-1 failed to start.*no such device"):
        await launcher.launch(ranks(3, fails="1"))
    await close(await launcher.launch(ranks(5)))


@on_a_cluster
async def test_a_process_that_hangs_is_killed_on_its_node(launcher: RayLauncher) -> None:
    [child] = await launcher.launch([replace(ranks(1)[0], name="engine")])
    os.kill(child.pid, signal.SIGSTOP)
    await child.kill()
    with pytest.raises(ChildDiedError):
        await child.call("anything", timeout_s=1)
    await gone(child.pid)


@on_a_cluster
async def test_processes_end_with_the_run_however_it_ends(address: str, tmp_path: Path) -> None:
    launcher = await open_ray(setup_of(address, tmp_path))
    children = await launcher.launch(ranks(2))
    await launcher._driver.kill()
    for child in children:
        await gone(child.pid)
    await close(children)
    await launcher.aclose()


def test_a_node_with_another_version_is_refused_before_anything_starts() -> None:
    own = own_versions()
    assert own.keys() == {"Python", *COMPARED}
    assert "+" not in own["torch"], "machines without a GPU have another build"
    here = {"address": "10.0.0.1", "versions": own}
    check_versions([here, here], own)
    for name, version in (("areal-sdk", "0.0.1"), ("Python", "3.9"), ("numpy", "")):
        there = {"address": "10.0.0.2", "versions": {**own, name: version}}
        told = rf"node 10\.0\.0\.2 has {name} {version or '.none.'}, the main process {own[name]}: install"
        with pytest.raises(ProcessError, match=told):
            check_versions([here, there], own)


async def test_without_a_cluster_the_cure_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no Ray cluster answers.*ray start --head"):
        await open_ray(setup_of("127.0.0.1:1", tmp_path))


def test_a_host_that_nobody_uses_ends_by_itself() -> None:
    unused = "from areal_sdk_ray import host; import time; host.IDLE_S = 0.0; host.RayHost(); time.sleep(600)"
    assert (
        subprocess.run([sys.executable, "-c", unused], timeout=60).returncode == os.EX_UNAVAILABLE
    )
