"""`learn` and `score`: weighted sequences, against plain transformers and cut differently."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.fsdp.step.optimizer import Applied
from areal_sdk.trainer import Demonstration

from .specs import changed, trainer_spec

PROMPT = tuple(range(40, 60))
ROWS = [
    Demonstration((*PROMPT, 5, 6, 7), (False,) * 20 + (True,) * 3, 0.5),
    Demonstration((*PROMPT, 5, 9), (False,) * 20 + (True,) * 2, -0.5),
    Demonstration((1, 2, *range(100, 180)), (False,) * 2 + (True,) * 80, 0.25),
    Demonstration((1, 2, 3), (False,) * 3),
]


@pytest.fixture
def spec(model_dir: Path) -> TrainerSpec:
    return trainer_spec(model_dir, precision="float32", warmup_steps=0)


class GradientTrainer(RankTrainer):
    """Keeps the gradient of its last update."""

    def _apply_gradients(self, learning_rate: float) -> Applied:
        self.gradient = {
            name: p.grad.clone()
            for name, p in self.policy.named_weights().items()
            if p.grad is not None
        }
        return super()._apply_gradients(learning_rate)


def logprob(model: torch.nn.Module, row: Demonstration) -> torch.Tensor:
    """The logprob by the book: one sequence, whole logits, in float64."""
    tokens = torch.tensor(row.tokens)
    logits = model(tokens[None]).logits[0, :-1].double()
    q = torch.log_softmax(logits, -1).gather(1, tokens[1:, None])[:, 0]
    return q[torch.tensor(row.loss_mask[1:])].sum()


def test_a_score_is_the_logprob_of_the_trained_tokens(spec: TrainerSpec, model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    expected = [logprob(model, row).item() for row in ROWS]
    assert expected[-1] == 0.0
    assert RankTrainer(spec).score(ROWS) == pytest.approx(expected, rel=1e-5)
    assert RankTrainer(spec).score([]) == []
    assert RankTrainer(spec).score(ROWS[-1:]) == [0.0]


def test_cutting_rows_into_microbatches_changes_no_score(spec: TrainerSpec) -> None:
    whole = RankTrainer(spec).score(ROWS)
    for cut in ({"tokens_per_microbatch": 1}, {"share_prompts": False}):
        assert RankTrainer(changed(spec, **cut)).score(ROWS) == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("cut", [{}, {"tokens_per_microbatch": 1, "share_prompts": False}])
def test_learning_follows_the_weighted_logprobs(
    spec: TrainerSpec, model_dir: Path, cut: dict[str, object]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    loss = -sum(row.weight * logprob(model, row) for row in ROWS) / 3.0
    assert isinstance(loss, torch.Tensor)
    torch.autograd.backward(loss)
    trainer = GradientTrainer(changed(spec, **cut))
    metrics = trainer.learn(ROWS, learning_rate=1e-3, divisor=3.0)
    assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
    assert metrics["num_updates"] == 1
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(trainer.gradient[name], parameter.grad, rtol=1e-4, atol=1e-6)


def test_equal_rows_of_opposite_weights_have_no_gradient(spec: TrainerSpec) -> None:
    rows = [replace(ROWS[2], weight=0.5), replace(ROWS[2], weight=-0.5)]
    assert RankTrainer(spec).learn(rows, learning_rate=1e-3, divisor=1.0)["grad_norm"] < 1e-6


def test_nothing_to_learn_is_no_update(spec: TrainerSpec) -> None:
    metrics = RankTrainer(spec).learn(ROWS[-1:], learning_rate=1e-3)
    assert metrics["num_updates"] == metrics["num_trained"] == 0
