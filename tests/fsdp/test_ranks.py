"""The number of ranks changes nothing, whatever an algorithm needs of the others."""

from dataclasses import replace
from pathlib import Path

import pytest

from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.fsdp.trainer import FSDPTrainer
from areal_sdk.trainer import PresetSpec

from .episodes import make_groups
from .specs import changed, trainer_spec

EVERYTHING = f"{Path(__file__).with_name('everything.py')}::everything"


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


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
async def test_ranks_agree_on_reference_values_screen_and_shares(
    spec: TrainerSpec, tmp_path: Path, ranks: int
) -> None:
    groups = make_groups(3, seed=1, version=1) + make_groups(2, seed=2, version=0)
    alone = RankTrainer(spec)
    client = FSDPTrainer(changed(spec, ranks=ranks), log_dir=tmp_path / "logs")
    await client.start()
    try:
        for _ in range(2):
            one = alone.step(groups, version=1)
            many = await client.step(groups, version=1, timeout_s=120)
            assert 0.0 < one["screened_out"] < 1.0, "the screen acts"
            for name in (
                "loss",
                "grad_norm",
                "value_loss",
                "value_grad_norm",
                "kl_reference",
                "screened_out",
                "weight",
                "entropy",
                "dlogp_lag_0",
            ):
                assert many[name] == pytest.approx(one[name], rel=1e-4, abs=1e-5), name
    finally:
        await client.aclose()
