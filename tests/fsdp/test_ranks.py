"""The number of ranks changes nothing, whatever an algorithm needs of the others."""

from dataclasses import replace
from pathlib import Path

import pytest

from areal_sdk.fsdp.checkpoint import load_checkpoint
from areal_sdk.fsdp.collectives import interface_towards
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.fsdp.trainer import FSDPTrainer
from areal_sdk.trainer import PresetSpec
from tests.fsdp.specs import EVERYTHING

from .agreement import assert_same_learning, assert_same_metrics
from .episodes import make_groups
from .specs import changed, trainer_spec


@pytest.fixture
def spec(model_dir: Path) -> TrainerSpec:
    spec = trainer_spec(
        model_dir,
        precision="float32",
        device="cpu",
        learning_rate=1e-3,
        num_minibatches=2,
        tokens_per_microbatch=128,
    )
    return replace(spec, preset=PresetSpec(EVERYTHING))


@pytest.mark.long
@pytest.mark.parametrize(
    ("ranks", "replicas"),
    [
        (2, 1),
        pytest.param(4, 1, marks=pytest.mark.slow),
        pytest.param(4, 2, marks=pytest.mark.slow),
        pytest.param(2, 2, marks=pytest.mark.slow),
    ],
)
async def test_ranks_agree_on_reference_values_screen_and_shares(
    spec: TrainerSpec, tmp_path: Path, ranks: int, replicas: int
) -> None:
    groups = make_groups(3, seed=1, version=1) + make_groups(2, seed=2, version=0)
    alone = RankTrainer(spec)
    client = FSDPTrainer(changed(spec, ranks=ranks, replicas=replicas), log_dir=tmp_path / "logs")
    await client.start()
    try:
        for _ in range(2):
            one = alone.step(groups, version=1)
            many = await client.step(groups, version=1, timeout_s=120)
            assert 0.0 < one["screened_out"] < 1.0, "the screen acts"
            assert_same_metrics(one, many)
        await client.save(tmp_path / "step-2", {})
    finally:
        await client.aclose()
    together = RankTrainer(spec)
    load_checkpoint(together, tmp_path / "step-2")
    assert_same_learning(alone, together)


def test_ranks_listen_where_the_others_reach_them() -> None:
    assert interface_towards("127.0.0.1") == "lo"
    assert interface_towards("::1") == "", "gloo chooses"
