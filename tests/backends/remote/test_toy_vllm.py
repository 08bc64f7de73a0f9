"""A server that is not SGLang needs one client: pool, swaps, verification, restarts are given."""

import asyncio
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.backends.remote.server_pool import State
from areal_sdk.engine import GenerateRequest
from areal_sdk.errors import EngineError
from areal_sdk.models import make_tiny_model
from areal_sdk.testing import check_engine
from areal_sdk.types import WeightUpdate
from tests.backends.remote.toy_vllm import plugin
from tests.loop.runs import DEADLINE_S, finish, run_dir, start_training, wait_for_steps
from tests.toolbox.waiting import until


def server_of(pid: int) -> int:
    """The server that the main process `pid` runs under its guard."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                session = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except (OSError, IndexError):
                continue  # it ended meanwhile
            if session == pid and str(plugin.SERVER).encode() in arguments:
                return int(entry.name)
        time.sleep(0.02)
    raise AssertionError("it never had a server")


def test_the_plugin_is_short() -> None:
    assert len(Path(plugin.__file__).read_text(encoding="utf-8").splitlines()) < 150


async def test_the_engine_contract_is_kept(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", num_layers=1)
    await check_engine(plugin.ToyEngine(model_dir=model, log_dir=tmp_path))


async def test_a_killed_server_is_replaced_and_its_requests_go_on(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", num_layers=1)
    engine = plugin.ToyEngine(model_dir=model, log_dir=tmp_path)
    await engine.start()
    try:
        stream = engine.stream(GenerateRequest((10, 11, 12), 600, ignore_eos=True))
        num_tokens = len((await anext(stream)).tokens)
        process = engine.servers[0].process
        assert process is not None
        process.signal(signal.SIGKILL)
        async for chunk in stream:
            num_tokens += len(chunk.tokens)
        assert num_tokens == 600
        assert engine.num_failovers > 0
        assert engine.servers[0].process is not process
    finally:
        await engine.aclose()


async def test_a_lone_server_that_dies_under_a_push_gets_the_weights_when_it_is_back(
    tmp_path: Path,
) -> None:
    model = make_tiny_model(tmp_path / "model", num_layers=1)
    engine = plugin.ToyEngine(model_dir=model, log_dir=tmp_path)
    await engine.start()
    try:
        process = engine.servers[0].process
        assert process is not None
        process.signal(signal.SIGKILL)
        await engine.update_weights(WeightUpdate(1, str(model / "model.safetensors")))
        result = await engine.generate(GenerateRequest((10, 11, 12), 20, ignore_eos=True))
        assert set(result.versions) == {1}
        assert engine.servers[0].process is not process
    finally:
        await engine.aclose()


@asynccontextmanager
async def lost(
    directory: Path, monkeypatch: pytest.MonkeyPatch, *, hold_says: str = "", **settings: Any
) -> AsyncIterator[tuple[plugin.ToyEngine, Path]]:
    """An engine whose only server was killed, and starts again once the hold, a file, is gone."""
    hold = directory / "hold"
    monkeypatch.setenv("TOY_HOLD", str(hold))
    model = make_tiny_model(directory / "model", num_layers=1)
    engine = plugin.ToyEngine(model_dir=model, log_dir=directory, request_wait_s=0.5, **settings)
    await engine.start()
    try:
        hold.write_text(hold_says)
        process = engine.servers[0].process
        assert process is not None
        process.signal(signal.SIGKILL)
        yield engine, hold
    finally:
        await engine.aclose()


async def test_requests_and_weights_wait_as_long_as_a_lone_server_takes_to_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lost(tmp_path, monkeypatch) as (engine, hold):
        outages: list[bool] = []
        engine.observe_outages(outages.append)
        await until(lambda: engine.servers[0].state is State.DOWN)
        asked = asyncio.create_task(
            engine.generate(GenerateRequest((10, 11, 12), 20, ignore_eos=True))
        )
        weights = str(tmp_path / "model" / "model.safetensors")
        updating = asyncio.create_task(engine.update_weights(WeightUpdate(1, weights)))
        done, _ = await asyncio.wait({asked, updating}, timeout=3 * 0.5)  # thrice request_wait_s
        assert not done
        hold.unlink()
        async with asyncio.timeout(DEADLINE_S):
            assert len((await asked).tokens) == 20
            await updating
        assert engine.version == 1
        assert outages == [True, False]


@pytest.mark.long
@pytest.mark.parametrize("servers", [1, 2])
async def test_a_server_that_is_killed_in_mid_update_gets_the_weights_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, servers: int
) -> None:
    hold = tmp_path / "hold"
    monkeypatch.setenv("TOY_HOLD", str(hold))
    model = make_tiny_model(tmp_path / "model", num_layers=1)
    engine = plugin.ToyEngine(model_dir=model, log_dir=tmp_path, servers=servers)
    await engine.start()
    try:
        hold.write_text("update")
        weights = WeightUpdate(1, str(model / "model.safetensors"))
        updating = asyncio.create_task(engine.update_weights(weights))
        await until((tmp_path / "in-update").exists)
        killed = engine.servers[-1]
        assert killed.process is not None
        killed.process.signal(signal.SIGKILL)
        await until(lambda: killed.state is State.DOWN)
        hold.unlink()
        async with asyncio.timeout(DEADLINE_S):
            await updating
            await until(lambda: all(server.state is State.READY for server in engine.servers))
            asked = [GenerateRequest((n,), 20, ignore_eos=True) for n in range(4)]
            results = await asyncio.gather(*map(engine.generate, asked))
        assert {version for result in results for version in result.versions} == {1}
        assert [server.version for server in engine.servers] == servers * [1]
    finally:
        await engine.aclose()


async def test_a_server_whose_port_was_taken_comes_back_at_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lost(tmp_path, monkeypatch) as (engine, hold):
        (server,) = engine.servers
        await until(lambda: server.state is State.DOWN)
        taken = int(server.address.rsplit(":", 1)[1])
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            other.bind(("127.0.0.1", taken))
            other.listen()
            hold.unlink()
            result = await engine.generate(GenerateRequest((10, 11, 12), 20, ignore_eos=True))
        assert len(result.tokens) == 20
        assert server.address != f"http://127.0.0.1:{taken}"


async def test_a_lone_server_that_is_given_up_fails_requests_with_setting_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lost(tmp_path, monkeypatch, hold_says="die", max_restarts=2) as (engine, _):
        await until(lambda: engine.servers[0].state is State.DOWN)
        with pytest.raises(EngineError) as failure:
            async with asyncio.timeout(DEADLINE_S):
                await engine.generate(GenerateRequest((10, 11, 12), 20, ignore_eos=True))
    told = str(failure.value)
    assert "no server was ready for 0.5 s (request_wait_s)" in told
    assert "it is left down after 2 starts that failed" in told
    assert f"log: {tmp_path / 'toy-0.log'}" in told


@pytest.mark.long
def test_an_agent_trains_on_it_and_a_killed_server_comes_back(tmp_path: Path) -> None:
    process = start_training(
        tmp_path,
        "--plugin",
        plugin.__file__,
        engine__name="toy-vllm",
        engine__dtype="auto",
        engine__max_slots=32,
        run__steps=5,
    )
    wait_for_steps(process, tmp_path, 1)
    os.killpg(server_of(process.pid), signal.SIGKILL)
    output = finish(process)
    assert "restarting the toy server of" in output
    assert len(run_dir(tmp_path).read_steps()) == 5
    books = run_dir(tmp_path).read_ledger()
    assert books is not None
    assert books["trained"] == 5 * 16


@pytest.mark.slow
def test_rollout_nodes_sample_from_its_servers_through_swaps_and_a_death(tmp_path: Path) -> None:
    process = start_training(
        tmp_path,
        "--plugin",
        plugin.__file__,
        "--set",
        "engine.toy-vllm.interrupt=retract",
        engine__name="toy-vllm",
        engine__dtype="auto",
        engine__max_slots=32,
        rollout__nodes=2,
        run__steps=5,
    )
    wait_for_steps(process, tmp_path, 1)
    os.killpg(server_of(process.pid), signal.SIGKILL)
    output = finish(process)
    assert "restarting the toy server of" in output
    books = run_dir(tmp_path).read_ledger()
    assert books is not None
    assert books["trained"] == 5 * 16
    found = [run_dir(tmp_path).find_episode(e.id) for e in run_dir(tmp_path).list_episodes()]
    versions = {v for record in found for t in record.episode.turns for v in t.versions}
    assert {0, 1, 2} <= versions, "tokens name the weights that sampled them"


@pytest.mark.slow
def test_nodes_need_servers_that_hold_their_requests(tmp_path: Path) -> None:
    output = finish(
        start_training(
            tmp_path,
            "--plugin",
            plugin.__file__,
            engine__name="toy-vllm",
            engine__dtype="auto",
            engine__max_slots=32,
            rollout__nodes=2,
        ),
        code=2,
    )
    assert 'interrupt = "retract"' in output
