"""Inference servers on nodes of a real Ray cluster, one of which is lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from areal_sdk.backends.remote.starting.placement import PlacedServer
from areal_sdk.config import ClusterSection
from areal_sdk.engine import GenerateRequest
from areal_sdk.errors import EngineError
from areal_sdk.launcher import LauncherSetup
from areal_sdk.models import make_tiny_model
from areal_sdk.process import ProcessSpec
from areal_sdk.types import WeightUpdate
from areal_sdk_ray.launcher import open_ray
from areal_sdk_ray.local_cluster import commands, lose_node, ray_cluster, raylet_of
from areal_sdk_sglang.install import SGLangEnvironment
from tests.backends.remote.toy_vllm.placed import placed_engine
from tests.backends.sglang.conftest import environment  # noqa: F401 - a fixture
from tests.loop.rescore import largest_error
from tests.loop.runs import finish, run_dir, start_training, wait_for_steps
from tests.toolbox.waiting import until

pytestmark = pytest.mark.long

SGLANG_DEADLINE_S = 1500.0
"""Seconds for a server that is started twice: each start takes minutes on a busy machine."""


@pytest.fixture
def address() -> Iterator[str]:
    """Three nodes with a processor each, beside the head: a trainer rank, a server, and room for its successor."""
    with ray_cluster(4, cpus=1, head_cpus=0) as address:
        yield address


def server_logs(directory: Path) -> list[Path]:
    return list(directory.glob("server-*"))


def setup_of(address: str, log_dir: Path, *, timeout_s: float = 60) -> LauncherSetup:
    cluster = ClusterSection(launcher="ray", address=address, placement_timeout_s=timeout_s)
    return LauncherSetup(cluster, "test", 1, log_dir, print)


async def test_servers_are_placed_and_one_comes_back_from_a_lost_node_at_the_current_version(
    address: str, tmp_path: Path
) -> None:
    model = make_tiny_model(tmp_path / "model", num_layers=1)
    launcher = await open_ray(setup_of(address, tmp_path))
    engine = placed_engine(launcher, model, tmp_path, count=2)
    try:
        await engine.start()
        nodes = {raylet_of(server.process.pid) for server in engine.servers if server.process}
        assert len(nodes) == 2
        await engine.update_weights(WeightUpdate(1, str(model / "model.safetensors")))
        victim = engine.servers[0]
        process, former = victim.process, victim.address
        assert isinstance(process, PlacedServer)
        lose_node(raylet_of(process.pid))
        request = GenerateRequest((10, 11, 12), 200, ignore_eos=True)
        assert len((await engine.generate(request)).tokens) == 200
        await until(lambda: victim.process is not process and victim.state == "ready")
        assert victim.process is not None
        assert raylet_of(victim.process.pid) not in nodes
        assert (victim.version, victim.address != former) == (1, True)

        needs_many = placed_engine(launcher, model, tmp_path, gpus=16)
        told = "server-0 needs 16 GPUs on one node, the largest has 0; a toy needs all of its GPUs"
        with pytest.raises(EngineError, match=told):
            await needs_many.start()
    finally:
        await engine.aclose()
        await launcher.aclose()


async def test_servers_without_room_end_the_start_with_how_many_have_some(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", num_layers=1)
    with ray_cluster(2, cpus=1) as address:
        launcher = await open_ray(setup_of(address, tmp_path, timeout_s=30))
        try:
            engine = placed_engine(launcher, model, tmp_path, count=3)
            told = (
                r"3 processes need 3 CPUs \(1 CPU each\), and only 2 of them fit on the 2 nodes: .*; "
                "use fewer toys"
            )
            with pytest.raises(EngineError, match=told):
                await engine.start()
            assert not server_logs(tmp_path), "none was placed"

            [other] = await launcher.launch([ProcessSpec("other", "tests.process.entries:rank")])
            engine = placed_engine(launcher, model, tmp_path, count=2)
            told = r"1 of 2 servers are placed: .* no room for server-\d within 30 s: .*; use fewer toys"
            with pytest.raises(EngineError, match=told):
                await engine.start()
            await other.aclose()
            engine = placed_engine(launcher, model, tmp_path, count=2)  # their room is free again
            await engine.start()
            await engine.aclose()
        finally:
            await launcher.aclose()


def test_a_node_without_sglang_ends_the_run_with_the_cure(address: str, tmp_path: Path) -> None:
    there = ("--launcher", "ray", "--set", f"cluster.address={address}")
    nowhere = tmp_path / "nowhere"
    own = ("--set", f"engine.sglang.environment={nowhere}")
    output = finish(start_training(tmp_path, *there, *own, engine__name="sglang"), code=1)
    assert f"no SGLang environment in {nowhere}" in output
    assert f"`areal-sdk engine install sglang --into {nowhere}`" in output
    assert "on the machine" in output


@pytest.mark.slow
def test_an_agent_trains_on_sglang_whose_node_is_lost(
    address: str,
    environment: SGLangEnvironment,  # noqa: F811
    tmp_path: Path,
) -> None:
    weights = tmp_path / "weights"
    weights.mkdir()
    process = start_training(
        tmp_path,
        *("--launcher", "ray", "--set", f"cluster.address={address}"),
        *("--set", f"engine.sglang.environment={environment.python.parents[1]}"),
        env={"AREAL_TEST_WEIGHTS": str(weights)},
        engine__name="sglang",
        engine__sglang__request_wait_s=SGLANG_DEADLINE_S,
        run__steps=6,
        rollout__max_inflight=32,
        rollout__max_staleness=4,
    )
    wait_for_steps(process, tmp_path, 2, deadline_s=SGLANG_DEADLINE_S)
    (beside,) = [pid for pid, words in commands() if any(w.startswith("server-0@") for w in words)]
    lose_node(raylet_of(beside))
    output = finish(process, deadline_s=SGLANG_DEADLINE_S)
    assert "restarting the SGLang server of" in output
    assert len(run_dir(tmp_path).read_steps()) == 6
    books = run_dir(tmp_path).read_ledger()
    assert books is not None
    dropped = sum(books["dropped"].values())
    assert books["started"] == books["running"] + books["buffered"] + books["trained"] + dropped
    report = largest_error(run_dir(tmp_path), weights)
    assert len(report.versions) > 2
    assert report.max_error < 1e-3
