"""Every built-in algorithm takes a step: what it needs is provided, on any cut of the batch."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from areal_sdk.builtin import ALGORITHMS
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer

from .agreement import assert_same_learning, assert_same_metrics, descending
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
    whole = descending(spec)
    cut = descending(changed(spec, tokens_per_microbatch=60, share_prompts=False))
    metrics = whole.step(groups, version=1)
    assert metrics["num_updates"] == 2
    assert_same_metrics(metrics, cut.step(groups, version=1))
    assert_same_learning(whole, cut)


def test_a_critic_whose_gradient_is_not_finite_is_reported_with_the_updates_left_out(
    spec: TrainerSpec,
) -> None:
    """Rewards of 1e25: the policy's advantages are normalised, the critic's squared error overflows."""
    groups = [
        replace(
            group,
            trajectories=tuple(replace(t, reward=t.reward * 1e25) for t in group.trajectories),
        )
        for group in make_groups(2)
    ]
    metrics = RankTrainer(with_preset(spec, "ppo")).step(groups, version=0)
    assert math.isfinite(metrics["grad_norm"])
    assert metrics["num_updates"] == 1
    assert not math.isfinite(metrics["value_grad_norm"])
    assert metrics["num_skipped_updates"] == 1


@pytest.mark.parametrize("preset", ["gspo", "m2po", "ppo"])
def test_the_order_of_groups_changes_nothing(spec: TrainerSpec, preset: str) -> None:
    spec = with_preset(spec, preset)
    groups = make_groups(2, seed=1, version=1) + make_groups(1, seed=2, version=0)
    one, other = descending(spec), descending(spec)
    assert_same_metrics(one.step(groups, version=1), other.step(groups[::-1], version=1))
    assert_same_learning(one, other)
