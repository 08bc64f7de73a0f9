"""The trainer on a device that is not the CPU: the same step within rounding, and no tensor on the wrong one.

The trainers descend plainly: AdamW would turn rounding into a full step (`tests/fsdp/agreement.py`).
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from areal_sdk.builtin import ALGORITHMS
from areal_sdk.fsdp.checkpoint import load_checkpoint, save_checkpoint
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.publish import Publisher
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.trainer import Demonstration
from areal_sdk.trajectory import TrajectoryGroup
from tests.fsdp.agreement import assert_same_learning, assert_same_metrics, descending
from tests.fsdp.episodes import branching_groups, make_groups
from tests.fsdp.specs import changed, trainer_spec, with_preset

OPTIONS: Mapping[str, dict[str, float]] = {
    "reinforce_plus_plus": {"kl": 0.05},
    "grpo": {"kl": 0.1, "entropy": 0.01},
}
"""With a reference, and with a gradient of the entropy."""


@pytest.fixture
def spec(dense_dir: Path) -> TrainerSpec:
    return trainer_spec(dense_dir, precision="float32", warmup_steps=0, learning_rate=1e-3)


def groups() -> list[TrajectoryGroup]:
    """Of two ages, far from the sampler."""
    return make_groups(2, seed=1, version=1) + make_groups(1, seed=2, version=0)


def assert_same_step(spec: TrainerSpec, device: torch.device, **compared: Any) -> None:
    here, there = descending(spec), descending(spec, Ranks(device=device))
    batch = compared.get("groups") or groups()
    assert_same_metrics(here.step(batch, version=1), there.step(batch, version=1))
    there.policy.cpu()  # the test's own comparison is on the host
    if there.critic is not None:
        there.critic.model.cpu()
    _fetch_moments(there)
    assert_same_learning(here, there)


def _fetch_moments(trainer: RankTrainer) -> None:
    optimizers = [trainer.optimizer] + ([trainer.critic.optimizer] if trainer.critic else [])
    for optimizer in optimizers:
        for state in optimizer.state.values():
            for name, value in state.items():
                state[name] = value.cpu() if isinstance(value, Tensor) else value


@pytest.mark.parametrize("preset", ALGORITHMS.values())
def test_every_preset_takes_the_same_step(
    spec: TrainerSpec, device: torch.device, preset: str
) -> None:
    """Two minibatches; ppo has a critic, some of the others a reference."""
    preset_spec = with_preset(spec, preset, **OPTIONS.get(preset, {}))
    assert_same_step(changed(preset_spec, num_minibatches=2), device)


@pytest.mark.parametrize(
    "settings",
    [
        {"lora": {"rank": 4, "alpha": 8.0}},
        {"activation_checkpointing": "full"},
        {"tokens_per_microbatch": 60, "share_prompts": False},
        {"head_precision": "float32"},
    ],
    ids=["lora", "checkpointing", "micro-batches", "exact head"],
)
def test_settings_take_the_same_step(
    spec: TrainerSpec, device: torch.device, settings: dict[str, Any]
) -> None:
    assert_same_step(changed(with_preset(spec, "grpo", kl=0.1), **settings), device)


def test_a_mixture_of_experts_takes_the_same_step(mixture_dir: Path, device: torch.device) -> None:
    spec = trainer_spec(mixture_dir, precision="float32", warmup_steps=0)
    assert_same_step(spec, device)


def test_branches_take_the_same_step(spec: TrainerSpec, device: torch.device) -> None:
    assert_same_step(spec, device, groups=branching_groups())


def test_imitation_and_scores_are_the_same(spec: TrainerSpec, device: torch.device) -> None:
    rows = [Demonstration(tuple(range(40, 64)), (False,) * 4 + (True,) * 20, weight=0.5)] * 2
    here, there = RankTrainer(spec), RankTrainer(spec, Ranks(device=device))
    assert here.score(rows) == pytest.approx(there.score(rows), rel=1e-5)
    metrics = here.learn(rows, learning_rate=1e-3)
    assert_same_metrics(metrics, there.learn(rows, learning_rate=1e-3))


def test_bfloat16_takes_a_step_in_half_precision(spec: TrainerSpec, device: torch.device) -> None:
    """Autocast has CUDA's lists there and the CPU's here, so the numbers are near and not the same."""
    half = changed(with_preset(spec, "ppo"), precision="bfloat16")
    here, there = RankTrainer(half), RankTrainer(half, Ranks(device=device))
    mine, theirs = here.step(groups(), version=1), there.step(groups(), version=1)
    for name in ("loss", "grad_norm", "value_loss", "entropy"):
        assert theirs[name] == pytest.approx(mine[name], rel=0.03, abs=0.01), name


def test_a_resumed_trainer_goes_on_as_the_one_that_was_saved(
    spec: TrainerSpec, device: torch.device, tmp_path: Path
) -> None:
    ppo = with_preset(spec, "ppo")
    first = RankTrainer(ppo, Ranks(device=device))
    first.step(groups(), version=1)
    save_checkpoint(first, tmp_path / "step-000001", {"kept": 1})
    resumed = RankTrainer(ppo, Ranks(device=device))
    load_checkpoint(resumed, tmp_path / "step-000001")
    assert {p.device.type for p in resumed.policy.parameters()} == {device.type}
    on_cpu = RankTrainer(ppo)
    load_checkpoint(on_cpu, tmp_path / "step-000001")
    metrics = first.step(groups(), version=1)
    assert_same_metrics(metrics, resumed.step(groups(), version=1))
    assert on_cpu.step(groups(), version=1)["loss"] == pytest.approx(metrics["loss"], rel=1e-4)


@pytest.mark.parametrize("settings", [{}, {"lora": {"rank": 4, "alpha": 8.0}}], ids=["all", "lora"])
def test_published_weights_are_those_of_the_device(
    spec: TrainerSpec, device: torch.device, tmp_path: Path, settings: dict[str, Any]
) -> None:
    trainer = RankTrainer(changed(spec, **settings), Ranks(device=device))
    trainer.step(groups(), version=1)
    publisher = Publisher(tmp_path, dtype=torch.bfloat16, began_with=spec.model_dir)
    update = publisher.publish(trainer.policy, 2, is_writer=True)
    assert update.path is not None
    published = load_file(update.path)
    for weight in trainer.policy.served_weights():
        for name, tensor in weight.gathered().merged():
            assert torch.equal(published[name], tensor.cpu().bfloat16())
