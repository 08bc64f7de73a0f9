"""Activation checkpointing changes what a step holds, and nothing that it computes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from areal_sdk.algorithms.batch import Batch, make_batch
from areal_sdk.algorithms.examples import make_demonstration
from areal_sdk.algorithms.packing import build_trees
from areal_sdk.config import LoraSection
from areal_sdk.fsdp.memory.activations import recompute_activations
from areal_sdk.fsdp.policy import load_policy
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.models.tiny import make_tiny_model
from areal_sdk.trainer import Demonstration
from tests.fsdp.episodes import make_groups
from tests.fsdp.specs import trainer_spec, with_preset
from tests.toolbox.measured_memory import measure_bytes


def trained(spec: TrainerSpec) -> tuple[list[str], list[torch.Tensor]]:
    """Losses, exactly, and weights after two steps and one update on demonstrations."""
    torch.manual_seed(0)
    trainer = RankTrainer(spec)
    losses = [trainer.step(make_groups(seed=v), version=0)["loss"] for v in range(2)]
    rows = [Demonstration(tuple(range(20)), (False,) * 4 + (True,) * 16)]
    losses.append(trainer.learn(rows, learning_rate=1e-3)["loss"])
    return [loss.hex() for loss in losses], list(trainer.policy.parameters())


@pytest.mark.parametrize(
    ("which", "settings"),
    [
        ("full", {"precision": "float32"}),
        ("half", {"precision": "bfloat16", "lora": LoraSection(rank=4, dropout=0.5)}),
    ],
    ids=["all weights", "an adapter with dropout"],
)
def test_losses_and_weights_are_bit_identical(
    model_dir: Path, which: str, settings: dict[str, Any]
) -> None:
    def run(which: str) -> tuple[list[str], list[torch.Tensor]]:
        spec = trainer_spec(model_dir, **settings, activation_checkpointing=which)
        return trained(with_preset(spec, "ppo"))

    losses, weights = run(which)
    expected_losses, expected_weights = run("none")
    assert losses == expected_losses
    for weight, expected in zip(weights, expected_weights, strict=True):
        assert torch.equal(weight, expected)


def one_row(num_tokens: int) -> Batch:
    tokens = np.random.default_rng(0).integers(0, 250, num_tokens).tolist()
    example = make_demonstration(tokens, [True] * num_tokens)
    assert example is not None
    return make_batch(build_trees([example.inputs], max_tokens=num_tokens), [example], version=0)


def test_between_the_passes_only_the_inputs_of_the_layers_are_kept(tmp_path: Path) -> None:
    directory, batch = make_tiny_model(tmp_path / "model", num_layers=8), one_row(256)

    def kept(which: Any) -> int:
        policy = load_policy(directory)
        recompute_activations(policy, which)
        return measure_bytes(lambda: policy(batch)).left

    none, half, full = kept("none"), kept("half"), kept("full")
    inputs = 8 * 256 * 96 * 4
    assert full - kept_beside_layers(directory, batch) < 1.2 * inputs
    assert full < 0.2 * none
    assert half == pytest.approx((none + full) / 2, rel=0.01)


def kept_beside_layers(directory: Path, batch: Batch) -> int:
    """Bytes that the output layer keeps, and the rest of a model without layers."""
    policy = load_policy(directory)
    del policy.layers[:]
    return measure_bytes(lambda: policy(batch)).left
