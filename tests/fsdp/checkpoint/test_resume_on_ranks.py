"""A checkpoint goes on with another number of ranks: the losses are those of the run that went on."""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from areal_sdk.config import RunSection
from areal_sdk.fsdp.checkpoint import load_checkpoint, save_checkpoint
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.fsdp.trainer import FSDPTrainer
from tests.fsdp.episodes import make_groups
from tests.fsdp.specs import changed, trainer_spec

BOUND = 1e-5
NUM_STEPS = 14
NUM_AFTER = 3
"""Steps that are compared after each resume."""


@pytest.fixture
def spec(model_dir: Path) -> TrainerSpec:
    spec = trainer_spec(
        model_dir, precision="float32", device="cpu", learning_rate=1e-4, warmup_steps=3
    )
    return replace(spec, run=RunSection(deterministic=True))


@asynccontextmanager
async def two_ranks(spec: TrainerSpec, logs: Path) -> AsyncIterator[FSDPTrainer]:
    client = FSDPTrainer(changed(spec, ranks=2), log_dir=logs)
    await client.start()
    try:
        yield client
    finally:
        await client.aclose()


async def loss_of_two(client: FSDPTrainer, step: int) -> float:
    metrics = await client.step(make_groups(seed=step), version=0, timeout_s=600)
    return metrics["loss"]


def loss_of_one(trainer: RankTrainer, step: int) -> float:
    return float(trainer.step(make_groups(seed=step), version=0)["loss"])


def assert_near(found: Mapping[int, float], expected: Mapping[int, float], *, what: str) -> None:
    errors = {step: abs(loss - expected[step]) for step, loss in found.items()}
    assert max(errors.values()) < BOUND, (what, errors)


@pytest.mark.long
@pytest.mark.parametrize("num_points", [1, pytest.param(10, marks=pytest.mark.slow)])
async def test_losses_go_on_with_one_rank_and_with_two(
    spec: TrainerSpec, tmp_path: Path, num_points: int
) -> None:
    """The same number of points each way: one rank goes on from the run of two ranks, and two from
    that of one."""
    num_steps = NUM_STEPS if num_points > 1 else 1 + NUM_AFTER
    points = sorted(
        random.Random(num_points).sample(range(1, num_steps - NUM_AFTER + 1), num_points)
    )
    alone, by_one, by_two = RankTrainer(spec), dict[int, float](), dict[int, float]()
    async with two_ranks(spec, tmp_path / "logs") as both:
        for step in range(1, num_steps + 1):
            by_one[step], by_two[step] = loss_of_one(alone, step), await loss_of_two(both, step)
            if step in points:
                save_checkpoint(alone, tmp_path / f"one-{step}", {"step": step})
                await both.save(tmp_path / f"two-{step}", {"step": step})
        assert len({round(loss, 6) for loss in by_one.values()}) > 1
        for point in points:
            after = range(point + 1, point + 1 + NUM_AFTER)
            assert load_checkpoint(alone, tmp_path / f"two-{point}") == {"step": point}
            assert_near({s: loss_of_one(alone, s) for s in after}, by_two, what=f"2 -> 1: {point}")
            assert await both.load(tmp_path / f"one-{point}") == {"step": point}
            found = {step: await loss_of_two(both, step) for step in after}
            assert_near(found, by_one, what=f"1 -> 2: {point}")
