"""A Ray cluster that is slow, or gone: slowness is no shortage, and nothing outlives its raylet."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from areal_sdk.errors import ProcessError
from areal_sdk.process import Child
from areal_sdk.telemetry.live.waits import current_waits
from areal_sdk_ray import launcher as launcher_module
from areal_sdk_ray.launcher import RayLauncher, open_ray
from areal_sdk_ray.local_cluster import open_cluster, parent_of, raylet_of, raylets_of
from tests.launch.ray_ranks import gone, ranks, setup_of
from tests.loop.runs import DEADLINE_S

pytestmark = pytest.mark.long

HELD_WORKERS = """
import os, sys, time
while os.path.exists({gate!r}) and any("default_worker" in word for word in sys.orig_argv):
    time.sleep(0.05)
"""
"""Run by each Python that the cluster starts: a worker of Ray waits here while the gate is closed."""


class Gate:
    """A gate: while it is closed, no worker of Ray comes up."""

    def __init__(self, directory: Path) -> None:
        self._file = directory / "closed"
        self.directory = directory
        (directory / "sitecustomize.py").write_text(HELD_WORKERS.format(gate=str(self._file)))

    def close(self) -> None:
        self._file.touch()

    def open(self) -> None:
        self._file.unlink()


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Gate:
    return Gate(tmp_path_factory.mktemp("gate"))


@pytest.fixture(scope="module")
def address(gate: Gate) -> Iterator[str]:
    """A head without room, and a node with one processor."""
    path = os.pathsep.join([str(gate.directory), os.environ.get("PYTHONPATH", "")])
    with open_cluster(2, cpus=1, head_cpus=0, env={"PYTHONPATH": path}) as cluster:
        yield cluster.address


@asynccontextmanager
async def opened(address: str, log_dir: Path) -> AsyncIterator[RayLauncher]:
    launcher = await open_ray(setup_of(address, log_dir))
    try:
        yield launcher
    finally:
        await launcher.aclose()


async def refusal(launcher: RayLauncher, monkeypatch: pytest.MonkeyPatch) -> str:
    """The reason why a launch fails that has a second of patience."""
    with monkeypatch.context() as patch:
        patch.setattr(launcher_module, "WORKER_START_S", 1.0)
        with pytest.raises(ProcessError) as caught:
            await launcher.launch(ranks(1))
    return str(caught.value)


async def wait_until_waiting(what: str, launching: "asyncio.Task[list[Child]]") -> float:
    """Return when a wait's name begins with `what`: the deadline that is shown."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            assert not launching.done(), launching.exception()
            for wait in current_waits():
                if wait.name.startswith(what):
                    return wait.timeout_s
            await asyncio.sleep(0.05)


async def test_a_worker_that_is_slow_to_start_is_no_shortage(
    address: str, gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate.close()
    async with opened(address, tmp_path) as launcher:  # which has two seconds to find room
        why = await refusal(launcher, monkeypatch)
        assert "room for trainer-0, but started no worker for trainer-0 within 1 s" in why
        launching = asyncio.create_task(launcher.launch(ranks(1)))
        shown = await wait_until_waiting("Ray: a worker to start for trainer-0", launching)
        assert shown == launcher_module.WORKER_START_S
        gate.open()
        [child] = await asyncio.wait_for(launching, DEADLINE_S)
        await child.aclose()


async def test_a_node_that_is_slow_to_answer_is_no_shortage(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(address, tmp_path) as launcher:
        os.kill(node := raylets_of(address)[-1], signal.SIGSTOP)
        try:
            why = await refusal(launcher, monkeypatch)
            assert "though its scheduler misses none: a node that does not answer" in why
            launching = asyncio.create_task(launcher.launch(ranks(1)))
            assert await wait_until_waiting("Ray: room for trainer-0", launching) == 2
            await wait_until_waiting("Ray: its nodes to reserve free room", launching)
        finally:
            os.kill(node, signal.SIGCONT)
        [child] = await asyncio.wait_for(launching, DEADLINE_S)
        await child.aclose()


async def test_a_host_ends_with_its_raylet_and_so_does_its_process(
    address: str, tmp_path: Path
) -> None:
    """The last of this file: the node is lost."""
    async with opened(address, tmp_path) as launcher:
        [child] = await launcher.launch(ranks(1))
        host = parent_of(child.pid)
        os.kill(raylet_of(child.pid), signal.SIGKILL)
        await gone(child.pid)
        await gone(host)
        assert "closed its connection" in str(await asyncio.wait_for(child.exited, DEADLINE_S))
        await child.aclose()
