"""Processes, and a whole run, on the nodes of a real Ray cluster."""

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.errors import ChildDiedError, ConfigError, ProcessError, RemoteError
from areal_sdk.launch.ray.driver import COMPARED, check_versions, own_versions
from areal_sdk.launch.ray.launcher import RayLauncher, open_ray
from areal_sdk.launcher import first_exit
from areal_sdk.process import Child, ProcessSpec
from areal_sdk.process.spec import Reservation
from tests.launch.ray_ranks import RANK, gone, ranks, setup_of
from tests.loop.runs import finish, resume_training, run_dir, start_training, wait_for_steps
from tests.toolbox.processes import is_alive
from tests.toolbox.run_records import curve

from .cluster import commands, ray_cluster

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Five nodes with one processor each: an engine, two ranks and two rollout nodes need one each."""
    with ray_cluster(5, cpus=1) as address:
        yield address


@pytest.fixture
async def launcher(address: str, tmp_path: Path) -> AsyncIterator[RayLauncher]:
    launcher = await open_ray(setup_of(address, tmp_path))
    yield launcher
    await launcher.aclose()


async def close(children: list[Child]) -> None:
    await asyncio.gather(*(child.aclose(grace_s=2.0) for child in children))


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
        await launcher.launch([ProcessSpec("engine", RANK, {})])
    await close(children)
    await close(await launcher.launch([ProcessSpec("engine", RANK, {})]))


async def test_what_the_cluster_does_not_have_is_named_at_once(launcher: RayLauncher) -> None:
    with pytest.raises(ProcessError, match="trainer-0 needs 2 CPUs on one node, the largest has 1"):
        await launcher.launch(ranks(1, reserves=Reservation(cpus=2)))
    with pytest.raises(
        ProcessError, match=r"6 processes need 6 CPUs \(1 CPU each\), and only 5 of"
    ):
        await launcher.launch(ranks(6))
    with pytest.raises(ProcessError, match="needs 8 GPUs on one node, the largest has 0"):
        await launcher.launch(ranks(1, reserves=Reservation(gpus=8)))


async def test_a_rank_that_fails_to_start_is_named_and_frees_the_room(
    launcher: RayLauncher,
) -> None:
    with pytest.raises(RemoteError, match=r"trainer-1 failed to start.*no such device"):
        await launcher.launch(ranks(3, fails="1"))
    await close(await launcher.launch(ranks(5)))


async def test_a_process_that_hangs_is_killed_on_its_node(launcher: RayLauncher) -> None:
    [child] = await launcher.launch([replace(ranks(1)[0], name="engine")])
    os.kill(child.pid, signal.SIGSTOP)
    await child.kill()
    with pytest.raises(ChildDiedError):
        await child.call("anything", timeout_s=1)
    await gone(child.pid)


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
    for name, version in (("areal-sdk", "0.0.1"), ("Python", "3.9"), ("torch", "")):
        there = {"address": "10.0.0.2", "versions": {**own, name: version}}
        told = rf"node 10\.0\.0\.2 has {name} {version or '.none.'}, the main process {own[name]}: install"
        with pytest.raises(ProcessError, match=told):
            check_versions([here, there], own)


async def test_without_a_cluster_the_cure_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no Ray cluster answers.*ray start --head"):
        await open_ray(setup_of("127.0.0.1:1", tmp_path))


def test_losses_on_five_nodes_are_those_of_one_machine_bit_for_bit(
    address: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"run__deterministic": True, "trainer__ranks": 2, "run__steps": 3}
    finish(start_training(tmp_path / "here", **settings))
    there = ("--launcher", "ray", "--set", f"cluster.address={address}")
    output = finish(start_training(tmp_path / "there", *there, rollout__nodes=2, **settings))
    assert curve(tmp_path / "there") == curve(tmp_path / "here")
    assert len(curve(tmp_path / "here")) == 3
    logs = {path.stem for path in run_dir(tmp_path / "there").logs.glob("*.log")}
    assert logs == {"engine", "node-0", "node-1", "driver", "trainer-0", "trainer-1"}, output


def test_what_the_cluster_cannot_hold_ends_the_run_at_once(address: str, tmp_path: Path) -> None:
    there = ("--launcher", "ray", "--set", f"cluster.address={address}")
    output = finish(start_training(tmp_path, *there, trainer__ranks=6), code=1)
    assert "6 processes need 6 CPUs (1 CPU each), and only 5 of them fit on the 5 nodes" in output


@pytest.mark.slow
def test_a_rank_that_is_killed_costs_a_restart_and_without_one_left_ends_the_run_by_name(
    address: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "run__deterministic": True,
        "run__checkpoint_every": 2,
        "trainer__ranks": 2,
    }
    there = ("--launcher", "ray", "--set", f"cluster.address={address}")
    lost, whole = tmp_path / "lost", tmp_path / "whole"
    process = start_training(lost, *there, **settings, run__steps=10_000, run__restarts=1)
    wait_for_steps(process, lost, 3)
    first = kill_rank(1)
    wait_for_steps(process, lost, 7)
    kill_rank(0)
    output = finish(process, code=1)
    assert re.search(r"warning: trainer-1 .*log: \S+trainer-1\.log.*\(restart 1 of 1\)", output), (
        output
    )
    assert re.search(r"error: .*trainer-0 .*log: \S+trainer-0\.log", output), output
    assert f"areal-sdk train --resume {lost / 'run'}" in output
    assert not is_alive(first)
    steps = max(curve(lost)) + 2
    finish(resume_training(lost, "--steps", str(steps)))
    finish(start_training(whole, **settings, run__steps=steps))
    assert curve(lost) == curve(whole)
    books = run_dir(lost).read_ledger()
    assert books is not None
    assert books["trained"] == 16 * steps


def kill_rank(number: int) -> int:
    """The pid of a trainer rank of the only run, which is killed."""
    (pid,) = [
        pid for pid, words in commands() if any(w.startswith(f"trainer-{number}@") for w in words)
    ]
    os.kill(pid, signal.SIGKILL)
    return pid
