"""Branches that share tokens are trained as if each had all of its own."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from areal_sdk.builtin import ALGORITHMS
from areal_sdk.fsdp.group_wire import decode_groups, encode_groups
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.rollout.trajectory import mask_older
from areal_sdk.trajectory import PER_TOKEN, Branch, Trajectory, TrajectoryGroup
from tests.fsdp.episodes import SAID, TURNS, branching_groups
from tests.fsdp.gradients import GradientTrainer, reference_gradient

from .agreement import assert_same_learning, assert_same_metrics, descending
from .specs import changed, trainer_spec, with_preset


@pytest.fixture
def spec(model_dir: Path) -> TrainerSpec:
    return trainer_spec(model_dir, precision="float32", warmup_steps=0, learning_rate=1e-3)


def alone(groups: Sequence[TrajectoryGroup]) -> list[TrajectoryGroup]:
    """The same groups, each trajectory with all tokens of its own."""
    return [replace(group, trajectories=tuple(map(_alone, group.trajectories))) for group in groups]


def _alone(t: Trajectory) -> Trajectory:
    context = {"logprobs": 0.0, "versions": -1, "temperatures": 1.0, "turn_of_token": -1}
    columns: dict[str, Any] = {
        name: np.concatenate(
            [np.full(t.branch.num_before, context.get(name, 0), dtype), getattr(t, name)]
        )
        for name, dtype in PER_TOKEN.items()
        if name != "tokens"
    }
    whole = Branch(t.branch.whole)
    return replace(t, tokens=whole.tokens, branch=whole, **columns)


def test_these_episodes_share_most_of_their_tokens() -> None:
    groups = branching_groups()
    stored = sum(len(t.tokens) for group in groups for t in group.trajectories)
    whole = sum(len(t.branch) for group in groups for t in group.trajectories)
    assert stored < 0.6 * whole
    assert all(t.branch.before is None for group in alone(groups) for t in group.trajectories)


@pytest.mark.parametrize("share_prompts", [True, False])
def test_gradients_equal_the_unshared_unpacked_reference(
    spec: TrainerSpec, share_prompts: bool
) -> None:
    groups = branching_groups()
    trainer = GradientTrainer(
        changed(spec, share_prompts=share_prompts, max_grad_norm=float("inf"))
    )
    metrics = trainer.step(decode_groups(*encode_groups(groups)), version=0)
    assert metrics["num_trained"] == 2 * 3 * (TURNS + 2 - 1) * SAID
    loss, gradient = reference_gradient(spec.model_dir, alone(groups))
    assert metrics["loss"] == pytest.approx(loss, rel=1e-5, abs=1e-7)
    for name, expected in gradient.items():
        error = (trainer.gradient[name] - expected).norm() / expected.norm()
        assert error < 1e-5, name


@pytest.mark.parametrize("preset", [*ALGORITHMS.values()])
def test_every_algorithm_takes_the_same_step_bit_for_bit(spec: TrainerSpec, preset: str) -> None:
    options = {"reinforce_plus_plus": {"kl": 0.05}, "grpo": {"kl": 0.1}}.get(preset, {})
    spec = with_preset(spec, preset, **options)
    groups = branching_groups()
    shared, whole = RankTrainer(spec), RankTrainer(spec)
    metrics, expected = shared.step(groups, version=1), whole.step(alone(groups), version=1)
    assert metrics["loss"] == expected["loss"]
    assert metrics["num_computed"] == expected["num_computed"]
    for ours, theirs in zip(shared.policy.parameters(), whole.policy.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_micro_batches_that_cut_an_episode_change_nothing(spec: TrainerSpec) -> None:
    groups = branching_groups()
    whole, cut = descending(spec), descending(changed(spec, tokens_per_microbatch=40))
    metrics = whole.step(groups, version=0)
    assert_same_metrics(metrics, cut.step(groups, version=0))
    assert_same_learning(whole, cut)


def test_a_branch_that_lost_its_trained_tokens_is_still_context(spec: TrainerSpec) -> None:
    """Too old, or left out of the batch: what begins like it needs its tokens."""
    groups = branching_groups()
    [first, *others] = groups[0].trajectories
    assert any(t.branch.before is first.branch for t in others)
    masked = mask_older(first, than=1)
    assert masked.num_trained == 0
    assert masked.branch is first.branch
    for kept in ((masked, *others), tuple(others)):
        group = replace(groups[0], trajectories=kept)
        (again,) = decode_groups(*encode_groups([group]))
        assert again.trajectories == kept
        shared, whole = RankTrainer(spec), RankTrainer(spec)
        metrics = shared.step([again, groups[1]], version=0)
        expected = whole.step(alone([group, groups[1]]), version=0)
        assert metrics["loss"] == expected["loss"]
        assert metrics["num_trained"] == expected["num_trained"]
