"""A reward model: trained where a policy trains, exported as transformers' classifier."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from areal_sdk.errors import ConfigError
from areal_sdk.fsdp.checkpoint import (
    export_checkpoint,
    export_model,
    load_checkpoint,
    save_checkpoint,
)
from areal_sdk.fsdp.policy import load_policy
from areal_sdk.fsdp.reward_model import Judge
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.trainer import Demonstration

from .specs import changed, trainer_spec

PROMPT = tuple(range(40, 60))
CHOSEN = Demonstration((*PROMPT, 5, 6, 7), (False,) * 20 + (True,) * 3, 0.5)
REJECTED = Demonstration((*PROMPT, 5, 9), (False,) * 20 + (True,) * 2, -0.5)
ROWS = [CHOSEN, REJECTED, Demonstration((1, 2, *range(100, 180)), (False,) * 82, 0.1)]


@pytest.fixture
def spec(model_dir: Path) -> TrainerSpec:
    plain = trainer_spec(model_dir, precision="float32", warmup_steps=0)
    return replace(plain, learns_rewards=True)


def trained(spec: TrainerSpec, *, steps: int = 3) -> RankTrainer:
    trainer = RankTrainer(spec)
    for _ in range(steps):
        trainer.learn(ROWS, learning_rate=1e-3, divisor=1.0)
    return trainer


def test_it_begins_without_a_preference_and_learns_one(spec: TrainerSpec) -> None:
    assert RankTrainer(spec).score(ROWS) == [0.0, 0.0, 0.0]
    chosen, rejected, _ = trained(spec, steps=5).score(ROWS)
    assert chosen > rejected


@pytest.mark.parametrize("cut", [{"tokens_per_microbatch": 1}, {"share_prompts": False}])
def test_cutting_rows_changes_no_reward(spec: TrainerSpec, cut: dict[str, object]) -> None:
    assert trained(changed(spec, **cut)).score(ROWS) == pytest.approx(
        trained(spec).score(ROWS), rel=1e-5, abs=1e-7
    )


def test_an_export_is_a_classifier_of_transformers_and_judges_alike(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    trainer = trained(spec)
    export_model(trainer, tmp_path / "judge", dtype=torch.float32)
    expected = trainer.score(ROWS)
    judge = Judge(tmp_path / "judge")
    assert [judge.reward(row.tokens) for row in ROWS] == pytest.approx(expected, rel=1e-4)
    classifier = AutoModelForSequenceClassification.from_pretrained(tmp_path / "judge")
    assert classifier.config.num_labels == 1
    with torch.no_grad():
        logits = [classifier(torch.tensor([row.tokens])).logits.item() for row in ROWS]
    assert logits == pytest.approx(expected, rel=1e-4)


def test_a_checkpoint_goes_on_and_exports_the_same_model(spec: TrainerSpec, tmp_path: Path) -> None:
    trainer = trained(spec)
    save_checkpoint(trainer, tmp_path / "step-3", {})
    export_model(trainer, tmp_path / "now", dtype=torch.float32)
    again = RankTrainer(spec)
    load_checkpoint(again, tmp_path / "step-3")
    assert again.score(ROWS) == trainer.score(ROWS)
    export_checkpoint(
        tmp_path / "step-3", tmp_path / "later", model_dir=spec.model_dir, dtype=torch.float32
    )
    now, later = (load_file(tmp_path / name / "model.safetensors") for name in ("now", "later"))
    assert now.keys() == later.keys()
    assert Judge(tmp_path / "later").reward(CHOSEN.tokens) == Judge(tmp_path / "now").reward(
        CHOSEN.tokens
    )


def test_a_reward_model_is_no_policy_and_a_policy_no_judge(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    export_model(RankTrainer(spec), tmp_path / "judge", dtype=torch.float32)
    with pytest.raises(ConfigError, match="is a reward model, which generates no text"):
        load_policy(tmp_path / "judge")
    with pytest.raises(ConfigError, match="is no reward model: give a run of"):
        Judge(spec.model_dir)


def test_what_cannot_be_judged_is_an_error_and_no_reward(spec: TrainerSpec, tmp_path: Path) -> None:
    export_model(RankTrainer(spec), tmp_path / "judge", dtype=torch.float32)
    judge = Judge(tmp_path / "judge")
    for tokens in ((), (1, 263)):
        with pytest.raises(ValueError, match="cannot be judged"):
            judge.reward(tokens)
    with pytest.raises(ValueError, match="an empty sequence has no reward"):
        RankTrainer(spec).score([Demonstration((), ())])
    assert math.isfinite(judge.reward((1,)))
