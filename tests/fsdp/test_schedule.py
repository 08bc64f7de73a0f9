"""The learning rate along a run, and the other settings of AdamW."""

from pathlib import Path
from typing import Any

import pytest
import torch

from areal_sdk.config import RunSection, TrainerSection
from areal_sdk.fsdp.checkpoint import load_checkpoint, save_checkpoint
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.fsdp.step.optimizer import scheduled
from areal_sdk.trainer import Demonstration

from .episodes import make_groups
from .specs import changed, trainer_spec, with_preset


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"schedule": "constant", "warmup_steps": 2}, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
        ({"schedule": "linear", "warmup_steps": 2}, [1.0, 1.0, 1.0, 0.75, 0.5, 0.25]),
        ({"schedule": "linear", "warmup_steps": 0}, [1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        (
            {"schedule": "linear", "warmup_steps": 2, "schedule_end": 0.2},
            [1.0, 1.0, 1.0, 0.8, 0.6, 0.4],
        ),
        ({"schedule": "cosine", "warmup_steps": 3}, [1.0, 1.0, 1.0, 1.0, 0.75, 0.25]),
        ({"schedule": "wsd", "warmup_steps": 1, "decay_share": 0.5}, [1.0, 1.0, 1.0, 1.0, 2 / 3, 1 / 3]),
        ({"schedule": "linear", "warmup_steps": 9}, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)  # fmt: skip
def test_the_shapes_of_a_run_of_six_steps(settings: Any, expected: list[float]) -> None:
    section = TrainerSection(**settings)
    rates = [scheduled(section, step=step, num_steps=6) for step in range(6)]
    assert rates == pytest.approx(expected)
    assert scheduled(section, step=6 + 9, num_steps=6) >= section.schedule_end  # a longer run


def run_of(model_dir: Path, steps: int, **settings: Any) -> TrainerSpec:
    settings = {
        "warmup_steps": 0,
        "trust_region": 0.0,
        **settings,
    }  # the rate of the schedule alone
    spec = trainer_spec(model_dir, precision="float32", learning_rate=1e-3, **settings)
    return TrainerSpec(spec.model_dir, RunSection(steps=steps), spec.trainer)


def test_a_step_without_an_update_counts_and_a_resume_goes_on_exactly(
    model_dir: Path, tmp_path: Path
) -> None:
    spec = run_of(model_dir, 4, schedule="linear")
    batches = [make_groups(1, seed=seed, same_reward=seed == 1) for seed in range(4)]
    whole, resumed = RankTrainer(spec), RankTrainer(spec)
    rates = [whole.step(groups, version=0).get("learning_rate") for groups in batches]
    assert rates == [pytest.approx(1e-3), None, pytest.approx(0.5e-3), pytest.approx(0.25e-3)]

    first = RankTrainer(spec)
    for groups in batches[:2]:
        first.step(groups, version=0)
    save_checkpoint(first, tmp_path / "step-2", {})
    load_checkpoint(resumed, tmp_path / "step-2")
    again = [resumed.step(groups, version=0)["learning_rate"] for groups in batches[2:]]
    assert again == rates[2:]
    for one, other in zip(whole.policy.parameters(), resumed.policy.parameters(), strict=True):
        assert torch.equal(one, other)


def test_fine_tuning_has_a_schedule_and_supervised_warm_up_has_none(model_dir: Path) -> None:
    rows = [Demonstration((1, 2, 3), (False, True, True))]

    def rates(*, fine_tunes: bool) -> list[float]:
        spec = run_of(model_dir, 2, schedule="linear")
        trainer = RankTrainer(TrainerSpec(model_dir, spec.run, spec.trainer, fine_tunes=fine_tunes))
        return [trainer.learn(rows, learning_rate=1e-2)["learning_rate"] for _ in range(2)]

    assert rates(fine_tunes=True) == pytest.approx([1e-2, 5e-3])
    assert rates(fine_tunes=False) == pytest.approx([1e-2, 1e-2])


def test_the_settings_of_adamw_reach_it(model_dir: Path) -> None:
    spec = trainer_spec(model_dir, beta1=0.8, beta2=0.95, epsilon=1e-6, weight_decay=0.1)
    [group] = RankTrainer(spec).optimizer.param_groups
    assert (group["betas"], group["eps"], group["weight_decay"]) == ((0.8, 0.95), 1e-6, 0.1)


def test_the_warm_up_counts_steps_of_the_run_as_the_schedule_does(
    model_dir: Path, tmp_path: Path
) -> None:
    """Two updates in each step, a step without one, a resume: the rates of policy and critic."""
    spec = run_of(model_dir, 8, schedule="linear", num_minibatches=2)
    spec = with_preset(changed(spec, warmup_steps=4), "ppo", critic_learning_rate=1e-2)

    def rates(trainer: RankTrainer, steps: range) -> list[tuple[float, float]]:
        assert trainer.critic is not None
        found = []
        for step in steps:
            trainer.step(make_groups(2, seed=step) if step != 1 else [], version=0)
            optimizers = (trainer.optimizer, trainer.critic.optimizer)
            found.append(tuple(optimizer.param_groups[0]["lr"] for optimizer in optimizers))
        return found

    trainer, resumed = RankTrainer(spec), RankTrainer(spec)
    begun = rates(trainer, range(3))
    save_checkpoint(trainer, tmp_path / "step-3", {})
    load_checkpoint(resumed, tmp_path / "step-3")
    parts = [0.25, 0.25, 0.75, 1.0, 1.0, 0.75]  # in step 1 nothing moves
    assert [rate / 1e-3 for rate, _ in begun + rates(trainer, range(3, 6))] == pytest.approx(parts)
    assert [rate / 1e-2 for _, rate in rates(resumed, range(3, 6))] == pytest.approx(parts[3:])


def test_a_critic_that_joins_a_run_warms_up_from_there(model_dir: Path, tmp_path: Path) -> None:
    spec = changed(run_of(model_dir, 8), warmup_steps=2)
    first = RankTrainer(spec)
    for seed in range(2):
        first.step(make_groups(seed=seed), version=0)
    save_checkpoint(first, tmp_path / "step-2", {})
    second = RankTrainer(with_preset(spec, "ppo", critic_learning_rate=1e-2))
    load_checkpoint(second, tmp_path / "step-2")
    metrics = second.step(make_groups(seed=2), version=0)
    assert second.critic is not None
    assert metrics["learning_rate"] == pytest.approx(1e-3)
    assert second.critic.optimizer.param_groups[0]["lr"] == pytest.approx(0.5e-2)
