"""A step is compared with the device before it is made, and a step that ran out of memory says what to lower."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from areal_sdk.config import TrainerSection
from areal_sdk.errors import MemoryShortError
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.memory.activations import StepMemory
from areal_sdk.fsdp.memory.fitting import Fit
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.fsdp.trainer import FSDPTrainer
from areal_sdk.models.tiny import make_tiny_model
from areal_sdk.process.memory import is_memory_short, machine_mb
from areal_sdk.process.spec import SHARE_VARIABLE
from areal_sdk.shapes import ModelShape
from areal_sdk.trainer import Demonstration, PresetSpec
from tests.fsdp.specs import trainer_spec

GB = 10**9
EIGHT_B = ModelShape(151936, 4096, 12288, 36, 32, 8, 128, has_normed_heads=True)


def fit(room: int = 72 * GB, **settings: Any) -> Fit:
    return Fit(EIGHT_B, TrainerSection(ranks=8, **settings), "bfloat16", room)


def recomputed(num_tokens: int, **settings: Any) -> str:
    return fit(**settings).chosen(num_tokens).activation_checkpointing


def test_no_more_is_recomputed_than_the_memory_asks_for() -> None:
    assert [recomputed(n) for n in (1024, 3072, 16_384, 131_072)] == [
        "none",
        "half",
        "full",
        "full",
    ]
    for num_tokens, which in ((1024, "none"), (3072, "half"), (16_384, "full")):
        chosen = fit().chosen(num_tokens)
        assert chosen.activation_checkpointing == which
        assert fit().needs(num_tokens, chosen).total <= 72 * GB
        assert fit().doubt(num_tokens) == ""


@pytest.mark.parametrize("which", ["none", "half", "full"])
def test_the_choice_of_the_user_stays(which: str) -> None:
    assert recomputed(131_072, activation_checkpointing=which) == which
    assert recomputed(16, activation_checkpointing=which) == which


def test_a_step_that_does_not_fit_is_told_with_figures_that_do() -> None:
    line = fit().doubt(40_000)
    assert line.startswith("a step with 40,000 tokens at once is predicted to take ")
    shorter = re.search(r"bound an episode to ([\d,]+) tokens", line)
    cured = re.search(r"defer_gradient_sync=false, with which ([\d,]+) fit", line)
    assert shorter is not None
    assert cured is not None
    bound, more = (int(found[1].replace(",", "")) for found in (shorter, cured))
    assert fit(activation_checkpointing="full").doubt(bound) == ""
    assert fit(activation_checkpointing="full").doubt(bound + 1) != ""
    assert fit(defer_gradient_sync=False).doubt(more) == ""


def test_a_microbatch_that_does_not_fit_is_lowered_by_how_much() -> None:
    line = fit(tokens_per_microbatch=65_536).doubt(65_536)
    most = re.search(r"lower trainer.tokens_per_microbatch from 65,536 to ([\d,]+)", line)
    assert most is not None
    assert fit(activation_checkpointing="full").doubt(int(most[1].replace(",", ""))) == ""
    hopeless = replace(fit(), room=GB).doubt(4096)
    assert hopeless.endswith(
        "GB on each rank, which has 1.0 GB: train on more GPUs (trainer.ranks)"
    )


def test_an_architecture_without_formulas_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "odd"}')
    assert Fit.of(tmp_path, TrainerSection(), GB) is None


def rows(length: int, *, num: int = 2) -> list[Demonstration]:
    draw = np.random.default_rng(0).integers
    mask = (False,) + (True,) * (length - 1)
    return [Demonstration(tuple(draw(3, 250, length).tolist()), mask) for _ in range(num)]


@pytest.mark.long
async def test_ranks_recompute_what_their_memory_has_no_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer rows make them recompute more. The result stays that of ranks with room."""
    model = make_tiny_model(tmp_path / "model", num_layers=8)
    common: dict[str, Any] = {"device": "cpu", "precision": "float32", "tokens_per_microbatch": 256}
    spec = trainer_spec(model, ranks=2, **common)
    memory = machine_mb()
    assert memory is not None
    found = Fit.of(model, spec.trainer, 0)
    assert found is not None
    middle = found.settings.model_copy(update={"activation_checkpointing": "half"})
    room = found.needs(256, middle).total * 1.01
    monkeypatch.setenv(SHARE_VARIABLE, str(2 * room / (memory << 20)))
    alone = RankTrainer(trainer_spec(model, **common, activation_checkpointing="none"))
    said: list[str] = []
    client = FSDPTrainer(spec, log_dir=tmp_path / "logs", say=said.append)
    await client.start()
    try:
        [line] = said
        assert 'activation_checkpointing is "half" from now on: a step with 256 tokens' in line
        for length in (200, 200, 400):
            theirs = await client.learn(rows(length), learning_rate=1e-3)
            ours = alone.learn(rows(length), learning_rate=1e-3)
            assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-5)
    finally:
        await client.aclose()
    assert 'activation_checkpointing is "full" from now on: a step with 400 tokens' in said[1]


async def test_a_rank_that_runs_out_of_memory_says_what_to_lower(
    model_dir: Path, tmp_path: Path
) -> None:
    preset = PresetSpec(f"{Path(__file__).with_name('short_of_memory.py')}::short_of_memory")
    spec = replace(trainer_spec(model_dir, device="cpu", precision="float32"), preset=preset)
    client = FSDPTrainer(spec, log_dir=tmp_path / "logs", say=print)
    await client.start()
    try:
        with pytest.raises(
            MemoryShortError, match="rank 0 on cpu ran out of memory in 'learn'"
        ) as short:
            await client.learn(rows(4096), learning_rate=1e-3)
    finally:
        await client.aclose()
    said = str(short.value)
    assert "can't allocate memory: you tried to allocate" in said
    taken = re.search(r"with ([\d.]+) GB taken at most \(predicted: ([\d.]+)\)", said)
    assert taken is not None
    assert 0.05 < float(taken[1]) < 24
    lowered = re.search(r"lower trainer.tokens_per_microbatch from 4,096 to ([\d,]+)", said)
    assert lowered is not None
    assert int(lowered[1].replace(",", "")) < 4096
    assert "trainer.activation_checkpointing=full, with which" in said


def test_memory_errors_are_told_from_others() -> None:
    assert is_memory_short(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"))
    assert is_memory_short(MemoryError())
    assert is_memory_short(OSError(12, "Cannot allocate memory"))
    with pytest.raises(RuntimeError) as too_large:
        torch.empty(2**50)
    assert is_memory_short(too_large.value)
    with pytest.raises(RuntimeError) as shapes:
        torch.ones(2) @ torch.ones(3)
    assert not is_memory_short(shapes.value)


def test_other_errors_stay_what_they_are(model_dir: Path) -> None:
    memory = StepMemory(trainer_spec(model_dir, device="cpu"), Ranks())
    with pytest.raises(RuntimeError, match="inconsistent tensor size"), memory.named("step"):
        torch.ones(2) @ torch.ones(3)
    with pytest.raises(MemoryShortError, match="out of memory in 'step'"), memory.named("step"):
        torch.empty(2**50)
