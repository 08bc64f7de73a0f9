"""Servers that a launcher places: real server processes, each with a process of ours beside it."""

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.backends.remote.server_pool import Server
from areal_sdk.backends.remote.sharing import RemoteEngineClient
from areal_sdk.backends.remote.starting.placement import PlacedServer
from areal_sdk.engine import GenerateRequest
from areal_sdk.errors import EngineError, ProcessError
from areal_sdk.launch import LocalLauncher
from areal_sdk.models import make_tiny_model
from areal_sdk.process import Child, ProcessSpec
from areal_sdk.process.network.listen import Listener
from areal_sdk.types import WeightUpdate
from tests.backends.remote.elsewhere import Elsewhere, can_mount
from tests.backends.remote.toy_vllm.placed import placed_engine
from tests.toolbox.waiting import until

REQUEST = GenerateRequest((10, 11, 12), 20, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=1)


@pytest.fixture
def launcher(tmp_path: Path) -> LocalLauncher:
    return LocalLauncher(log_dir=tmp_path)


def placed(server: Server) -> PlacedServer:
    assert isinstance(server.process, PlacedServer)
    return server.process


def logs(directory: Path) -> str:
    return "".join(path.read_text() for path in directory.glob("server-*.log"))


def versions(directory: Path, *installed: str) -> Path:
    directory.mkdir()
    for index, version in enumerate(installed):
        (directory / str(index)).write_text(version)
    return directory


@pytest.mark.long
async def test_a_killed_server_comes_back_at_another_address_and_nodes_hear_of_it(
    launcher: LocalLauncher, model: Path, tmp_path: Path
) -> None:
    engine = placed_engine(launcher, model, tmp_path, count=2)
    await engine.start()
    node: RemoteEngineClient | None = None

    async def tell(state: Mapping[str, Any]) -> None:
        assert node is not None
        await node.told(state)

    try:
        node = RemoteEngineClient(engine.info, name="node-0")
        await node.told((await engine.open_entrance(tell, host="127.0.0.1")).state)
        await engine.update_weights(WeightUpdate(1, str(model / "model.safetensors")))
        long = GenerateRequest((10, 11, 12), 600, ignore_eos=True)
        async with aclosing(node.stream(long)) as stream:
            num_tokens = len((await anext(stream)).tokens)
            (busy,) = [m for m in node._pool.servers if m.num_running]
            (victim,) = [m for m in engine.servers if m.address == busy.address]
            former, process = victim.address, placed(victim)
            os.kill(process.pid, signal.SIGKILL)  # the server dies with the process beside it
            async for chunk in stream:
                num_tokens += len(chunk.tokens)
        assert num_tokens == 600
        await until(lambda: victim.state == "ready" and victim.process is not process)
        assert victim.address != former
        assert victim.version == 1
        await until(lambda: {m.address for m in node._pool.ready} == addresses(engine.servers))
        assert set((await node.generate(REQUEST)).versions) == {1}
    finally:
        if node is not None:
            await node.aclose()
        await engine.aclose()
    assert not any(placed(server).is_running for server in engine.servers)


def addresses(servers: Any) -> set[str]:
    return {server.address for server in servers}


async def test_servers_of_two_versions_are_refused_before_one_is_started(
    launcher: LocalLauncher, model: Path, tmp_path: Path
) -> None:
    installed = versions(tmp_path / "installed", "1.0", "2.0")
    engine = placed_engine(launcher, model, tmp_path, count=2, versions=installed)
    with pytest.raises(EngineError, match=r"has toy (1|2)\.0, .* install one toy everywhere"):
        await engine.start()
    assert "starting the server" not in logs(tmp_path)


async def test_what_a_machine_lacks_is_named_with_the_cure(
    launcher: LocalLauncher, model: Path, tmp_path: Path
) -> None:
    engine = placed_engine(launcher, model, tmp_path, versions=versions(tmp_path / "none"))
    told = r"server-0 failed to start.*on the machine 127\.0\.0\.1: no toy is installed: install"
    with pytest.raises(EngineError, match=told):
        await engine.start()
    engine = placed_engine(launcher, tmp_path / "nowhere", tmp_path)
    engine._model = model  # the main process has it
    with pytest.raises(EngineError, match=r"has no model in .*nowhere: every machine needs it"):
        await engine.start()


class Places(LocalLauncher):
    """Has `free` of `total` places; others hold the rest, until their time is over."""

    def __init__(self, log_dir: Path, *, free: int, total: int) -> None:
        super().__init__(log_dir=log_dir)
        self.free, self.total = free, total
        self._starting = 0
        self._are_started = asyncio.Event()

    async def launch(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        if self.free == 0:
            async with asyncio.timeout(60):
                await self._are_started.wait()
            raise ProcessError("other jobs hold the rest")
        self.free -= 1
        self._starting += 1
        children = await super().launch(specs)
        self._starting -= 1
        if not self._starting:
            asyncio.get_running_loop().call_later(0.1, self._are_started.set)
        return children

    async def has_room(self, specs: Sequence[ProcessSpec], *, timeout_s: float) -> bool:
        return len(specs) <= self.free

    async def shortage(self, specs: Sequence[ProcessSpec]) -> str:
        return f"only {self.total} fit" if len(specs) > self.total else ""


async def test_servers_that_could_never_have_room_together_are_refused_before_one_is_placed(
    model: Path, tmp_path: Path
) -> None:
    engine = placed_engine(Places(tmp_path, free=3, total=3), model, tmp_path, count=4)
    told = "no room for 4 servers: only 3 fit; use fewer toys"
    with pytest.raises(EngineError, match=told):
        await engine.start()
    assert not logs(tmp_path)
    engine = placed_engine(Places(tmp_path, free=0, total=0), model, tmp_path, count=4)
    with pytest.raises(EngineError, match="only 0 fit; a toy needs all of its GPUs"):
        await engine.start()


async def test_an_error_of_placement_says_how_many_servers_are_placed(
    model: Path, tmp_path: Path
) -> None:
    engine = placed_engine(Places(tmp_path, free=2, total=4), model, tmp_path, count=4)
    told = "2 of 4 servers are placed: other jobs hold the rest; a toy needs .*; use fewer toys"
    with pytest.raises(EngineError, match=told):
        await engine.start()


@pytest.mark.long
@pytest.mark.skipif(not can_mount(), reason="mount namespaces take root and `unshare`")
async def test_weights_reach_servers_that_do_not_see_the_file(model: Path, tmp_path: Path) -> None:
    """The canary shows that they are served; a server that comes back gets them again."""
    published = tmp_path / "published"
    published.mkdir()
    changed = make_tiny_model(tmp_path / "changed", num_layers=1, seed=1) / "model.safetensors"
    weights = published / "model.safetensors"
    weights.write_bytes(changed.read_bytes())
    launcher = Elsewhere(await Listener.open(), [published], tmp_path)
    engine = placed_engine(launcher, model, tmp_path, count=3)
    await engine.start()
    try:
        assert not any([await placed(server).sees([weights]) for server in engine.servers])
        await engine.update_weights(WeightUpdate(1, str(weights)))
        assert [server.version for server in engine.servers] == [1, 1, 1]
        assert not any(server.is_tainted for server in engine.servers)

        victim, process = engine.servers[1], placed(engine.servers[1])
        process.signal(signal.SIGKILL)
        await until(lambda: victim.state == "ready" and victim.process is not process)
        assert victim.version == 1

        broken = placed(engine.servers[2])
        os.kill(broken.pid, signal.SIGSTOP)  # in the chain, and silent
        os.kill(broken.pid, signal.SIGKILL)
        weights.write_bytes((model / "model.safetensors").read_bytes())
        await engine.update_weights(WeightUpdate(2, str(weights)))
        await until(lambda: [server.version for server in engine.servers] == [2, 2, 2])
    finally:
        await engine.aclose()
        await launcher.aclose()


async def test_an_update_that_a_machine_sees_is_not_sent(
    launcher: LocalLauncher, model: Path, tmp_path: Path
) -> None:
    engine = placed_engine(launcher, model, tmp_path)
    await engine.start()
    try:
        weights = model / "model.safetensors"
        assert await placed(engine.servers[0]).sees([weights])
        assert "starting the server (toy 1)" in logs(tmp_path)
        await engine.update_weights(WeightUpdate(1, str(weights)))
        assert engine.version == 1
        async with asyncio.timeout(60):
            assert set((await engine.generate(REQUEST)).versions) == {1}
    finally:
        await engine.aclose()
