"""Every built-in algorithm takes a step: what it needs is provided, on any cut of the batch."""

import math
from pathlib import Path

import pytest

from areal_sdk.builtin import ALGORITHMS
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer

from .episodes import make_groups
from .specs import changed, trainer_spec, with_preset

WITH_REFERENCE = {"reinforce_plus_plus": {"kl": 0.05}, "grpo": {"kl": 0.1, "entropy": 0.01}}


@pytest.fixture
def spec(model_dir: Path) -> TrainerSpec:
    return trainer_spec(model_dir, precision="float32", warmup_steps=0, learning_rate=1e-3)


@pytest.mark.parametrize("preset", [*ALGORITHMS.values()])
def test_micro_batches_and_packing_change_nothing(spec: TrainerSpec, preset: str) -> None:
    spec = changed(with_preset(spec, preset, **WITH_REFERENCE.get(preset, {})), num_minibatches=2)
    # Far from the sampler, and of two ages, so that weights, clips and screens act.
    groups = make_groups(2, seed=1, version=1) + make_groups(2, seed=2, version=0)
    cuts = [
        RankTrainer(changed(spec, **cut))
        for cut in ({}, {"tokens_per_microbatch": 60, "share_prompts": False})
    ]
    whole, cut = (trainer.step(groups, version=1) for trainer in cuts)
    assert whole["num_updates"] == 2
    for name in ("loss", "grad_norm", "entropy", "weight", "value_loss", "kl_reference"):
        if name in whole:
            assert math.isfinite(whole[name])
            assert cut[name] == pytest.approx(whole[name], rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize("preset", ["gspo", "m2po", "ppo"])
def test_the_order_of_groups_changes_nothing(spec: TrainerSpec, preset: str) -> None:
    spec = with_preset(spec, preset)
    groups = make_groups(2, seed=1, version=1) + make_groups(1, seed=2, version=0)
    one, other = (RankTrainer(spec).step(g, version=1) for g in (groups, groups[::-1]))
    for name in ("loss", "grad_norm", "entropy", "weight", "dlogp_lag_1"):
        assert other[name] == pytest.approx(one[name], rel=1e-5, abs=1e-7), name
