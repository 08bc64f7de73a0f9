"""The trainer through its client: real processes, one and two ranks."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed.checkpoint.state_dict_loader import load

from areal_sdk.errors import CheckpointError, ChildDiedError, ConfigError, ProcessError, RemoteError
from areal_sdk.fsdp.checkpoint import load_checkpoint
from areal_sdk.fsdp.checkpoint.saving import alone_is_fine
from areal_sdk.fsdp.directories import PublishDir
from areal_sdk.fsdp.group_wire import encode_groups
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.fsdp.trainer import FSDPTrainer
from areal_sdk.trainer import Demonstration
from areal_sdk.trajectory import TrajectoryGroup

from .episodes import make_groups
from .specs import changed, trainer_spec

ROWS = [Demonstration((1, 2, 3, 4), (False, True, True, True))]
WEIGHTED = [
    Demonstration((1, 2, 3, 4, *range(50, 250)), (False,) * 2 + (True,) * 202, 0.4),
    Demonstration((1, 2, 9), (False, True, True), -0.4),
    Demonstration((7, 2, 9, 5), (False, False, False, True), 0.1),
]
BY_PAIR = {"learning_rate": 1e-3, "divisor": 1.5}


@pytest.fixture
def spec(model_dir: Path) -> TrainerSpec:
    return trainer_spec(model_dir, precision="float32", device="cpu", learning_rate=1e-3)


@asynccontextmanager
async def running(spec: TrainerSpec, tmp_path: Path) -> AsyncIterator[FSDPTrainer]:
    client = FSDPTrainer(spec, log_dir=tmp_path / "logs")
    await client.start()
    try:
        yield client
    finally:
        await client.aclose()


async def test_one_rank_steps_publishes_saves_and_goes_on_bit_by_bit(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    groups = make_groups()
    async with running(spec, tmp_path) as client:
        assert client.info.num_parameters > 100_000
        assert client.info.device == "cpu"
        # The same numbers as in this process: nothing is lost on the wire.
        trainer = RankTrainer(spec)
        ours = trainer.step(groups, version=0)
        theirs = await client.step(groups, version=0, timeout_s=60)
        assert theirs["loss"] == pytest.approx(ours["loss"], abs=1e-7)
        assert theirs["num_trained"] == ours["num_trained"]
        assert client.credit == trainer.credit
        assert {t.episode_id for g in groups for t in g.trajectories} == client.credit.keys()

        update = await client.publish(1)
        assert update.version == 1
        assert update.path is not None
        published = Path(update.path)
        await client.save(tmp_path / "step-1", {"v": 1})
        expected = await client.step(groups, version=1, timeout_s=60)
        assert await client.load(tmp_path / "step-1") == {"v": 1}
        again = await client.step(groups, version=1, timeout_s=60)
        assert (again["loss"], again["grad_norm"]) == (expected["loss"], expected["grad_norm"])

        await client.save(tmp_path / "step-2", {})
        await client.export(tmp_path / "best")
        assert (
            load_file(tmp_path / "best" / "model.safetensors").keys() == load_file(published).keys()
        )

        # The caller's mistakes are errors here, and the trainer lives on.
        with pytest.raises(CheckpointError, match="is not a checkpoint"):
            await client.load(tmp_path)
        with pytest.raises(RemoteError, match="starts from 0"):
            await client.step(make_groups(1, version=5), version=0, timeout_s=60)
        assert (await client.learn(ROWS, learning_rate=1e-3))["num_trained"] == 3
    assert not published.exists()  # noqa: ASYNC240


async def test_a_large_batch_is_encoded_beside_the_event_loop(
    spec: TrainerSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[threading.Thread] = set()

    def encode(groups: Sequence[TrajectoryGroup]) -> tuple[Any, list[Any]]:
        threads.add(threading.current_thread())
        return encode_groups(groups)

    monkeypatch.setattr("areal_sdk.fsdp.trainer.encode_groups", encode)
    with pytest.raises(ProcessError, match="not running"):
        await FSDPTrainer(spec, log_dir=tmp_path).step(make_groups(1), version=0, timeout_s=60)
    assert threads
    assert threading.current_thread() not in threads


async def test_two_ranks_compute_what_one_computes(spec: TrainerSpec, tmp_path: Path) -> None:
    spec = changed(spec, num_minibatches=2, tokens_per_microbatch=256)
    alone = RankTrainer(spec)
    expected = [alone.step(make_groups(5, seed=s), version=0) for s in range(2)]
    async with running(changed(spec, ranks=2), tmp_path) as client:
        for seed, one in enumerate(expected):
            two = await client.step(make_groups(5, seed=seed), version=0, timeout_s=60)
            for name in ("loss", "grad_norm", "weight", "kl_behaviour", "ratio_max"):
                assert two[name] == pytest.approx(one[name], rel=1e-5, abs=1e-8), name
            assert two["num_trained"] == one["num_trained"]
        # One trajectory: a rank has nothing to compute, and takes part all the same.
        [group] = make_groups(1, size=2)
        tiny = await client.step([group], version=0, timeout_s=60)
        assert tiny["grad_norm"] == pytest.approx(
            alone.step([group], version=0)["grad_norm"], rel=1e-5
        )
        assert (await client.step(make_groups(same_reward=True), version=0, timeout_s=60))[
            "num_trained"
        ] == 0
        assert (await client.learn(ROWS, learning_rate=1e-3))["loss"] == pytest.approx(
            alone.learn(ROWS, learning_rate=1e-3)["loss"], rel=1e-5
        )
        assert await client.score(WEIGHTED) == pytest.approx(alone.score(WEIGHTED), rel=1e-5)
        weighted = [
            t["grad_norm"]
            for t in (await client.learn(WEIGHTED, **BY_PAIR), alone.learn(WEIGHTED, **BY_PAIR))
        ]
        assert weighted[0] == pytest.approx(weighted[1], rel=1e-5)
        update = await client.publish(1)
        assert update.path is not None
        published = load_file(update.path)
        for name, parameter in alone.policy.named_weights().items():
            assert published[name].float().allclose(parameter, atol=1e-2), name
        # Rank 0 cannot write: no rank is left waiting, and the next save works.
        (tmp_path / "a file").write_text("")
        with pytest.raises(CheckpointError, match="stay valid"):
            await client.save(tmp_path / "a file" / "step-1", {})
        await client.save(tmp_path / "step-1", {"v": 1})
    # Each rank draws its own random numbers, and goes on with them.
    generators = {f"rng.{rank}": torch.get_rng_state() for rank in range(2)}
    with alone_is_fine():
        load(generators, checkpoint_id=tmp_path / "step-1", no_dist=True)
    assert not torch.equal(*generators.values())
    # A checkpoint does not care how many ranks wrote it.
    again = RankTrainer(spec)
    assert load_checkpoint(again, tmp_path / "step-1") == {"v": 1}
    assert again.learn(ROWS, learning_rate=1e-3)["loss"] == pytest.approx(
        alone.learn(ROWS, learning_rate=1e-3)["loss"], rel=1e-5
    )


@pytest.mark.long
async def test_the_death_of_any_rank_fails_the_call_at_once(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    async with running(changed(spec, ranks=2), tmp_path) as client:
        victim = client.children[1]
        os.kill(victim.pid, signal.SIGSTOP)  # so that the step is certain to be under way
        step = asyncio.create_task(client.step(make_groups(), version=0, timeout_s=120))
        await asyncio.sleep(0)
        os.kill(victim.pid, signal.SIGKILL)
        with pytest.raises(ProcessError, match=r"trainer-1 .* SIGKILL"):
            await asyncio.wait_for(step, timeout=30)
        with pytest.raises(ChildDiedError):
            await client.step(make_groups(), version=0, timeout_s=10)


async def test_a_model_that_the_ranks_refuse_is_asked_for_wrongly(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    shutil.copytree(spec.model_dir, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": 9}))
    with pytest.raises(ConfigError, match=r"its files have no model\.layers\."):
        async with running(replace(spec, model_dir=tmp_path / "model"), tmp_path):
            pass


def test_the_client_imports_no_torch() -> None:
    code = "import sys, areal_sdk.fsdp.trainer; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_what_was_published_is_removed_beside_the_event_loop(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    removed_by: list[threading.Thread] = []

    class Noted(PublishDir):
        def remove(self) -> None:
            removed_by.append(threading.current_thread())
            super().remove()

    client = FSDPTrainer(spec, log_dir=tmp_path)
    published = client._own_publish_dir = Noted(size=0)
    await client.aclose()
    assert not published.path.exists()
    assert removed_by
    assert threading.current_thread() not in removed_by
