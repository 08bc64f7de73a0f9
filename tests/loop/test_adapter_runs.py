"""Runs that train an adapter: what the engine samples with, and how such runs go on."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from areal_sdk.backends.local import LocalOptions
from areal_sdk.backends.local.core import EngineCore
from areal_sdk.backends.local.forward.checkpoint import open_weights
from areal_sdk.config import TrainerSection
from areal_sdk.engine import GenerateRequest
from areal_sdk.errors import ConfigError
from areal_sdk.fsdp.publish import Publisher
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.loop import resume_training
from areal_sdk.loop.plan.models import find_model
from areal_sdk.models import make_tiny_model, resolve_model
from areal_sdk.trainer import Demonstration
from tests.backends.local.reference import run
from tests.loop.rescore import largest_error
from tests.loop.runs import (
    AGENT,
    finish,
    run_dir,
    start_command,
    start_training,
    train_and_keep_weights,
)
from tests.loop.runs import (
    resume_training as resume,
)
from tests.toolbox.run_records import DETERMINISTIC, curve

LORA: dict[str, Any] = {"trainer__lora__rank": 4, "trainer__learning_rate": 1e-2}


def test_the_trainer_scores_what_the_engine_sampled_from_merged_weights(tmp_path: Path) -> None:
    model_dir = make_tiny_model(tmp_path / "tiny")
    lora = {"rank": 4, "targets": ["q_proj", "v_proj", "down_proj"]}
    settings = TrainerSection(precision="float32", warmup_steps=0, lora=lora)  # type: ignore[arg-type]
    trainer = RankTrainer(TrainerSpec(model_dir, trainer=settings))
    core = EngineCore(model_dir, LocalOptions(kv_memory_gb=0.1))
    publisher = Publisher(tmp_path / "published", dtype=torch.float32, contents="changed")
    prompt = tuple(range(40, 60))
    before: list[float] = []
    for version in (1, 2, 3):
        trainer.learn([Demonstration(prompt, (True,) * 20)], learning_rate=1e-2)
        update = publisher.publish(trainer.policy, version, is_writer=True)
        assert update.path is not None
        weights = open_weights(
            Path(update.path), core.architecture, checksum=update.checksum, base=model_dir
        )
        core.update_weights(version, weights)
        (sampled,) = run(core, core.add(GenerateRequest(prompt, 30, seed=1, ignore_eos=True)))
        for end, logprob in enumerate(sampled.logprobs, start=1):
            tokens = (*prompt, *sampled.tokens[:end])
            row = Demonstration(tokens, (False,) * (len(tokens) - 1) + (True,))
            assert trainer.score([row])[0] == pytest.approx(logprob, abs=1e-3)
        assert sampled.logprobs != before, "the update changed nothing"
        before = sampled.logprobs


# whole runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an adapter whose weights change in the middle of turns; every version is kept."""
    directory = tmp_path_factory.mktemp("run")
    train_and_keep_weights(
        directory, run__steps=6, rollout__max_inflight=32, rollout__max_staleness=4, **LORA
    )
    return directory


@pytest.mark.slow
def test_every_trained_token_rescores_under_the_merged_weights_it_names(trained: Path) -> None:
    report = largest_error(run_dir(trained), trained / "weights")
    assert report.num_tokens > 1000
    assert len(report.versions) > 2
    assert report.max_error < 1e-3
    steps = run_dir(trained).read_steps()
    assert max(step.get("train/dlogp_lag_0", 0.0) for step in steps) < 1e-3


@pytest.mark.slow
def test_a_finished_run_is_a_plain_model(trained: Path) -> None:
    model_dir = find_model(str(trained / "run"))
    assert AutoModelForCausalLM.from_pretrained(model_dir).num_parameters() > 100_000
    (checkpoint,) = run_dir(trained).checkpoints.glob("step-*")
    exported = load_file(find_model(str(checkpoint)) / "model.safetensors")
    final = load_file(run_dir(trained).checkpoints / "final" / "model.safetensors")
    assert all(torch.equal(tensor, exported[name]) for name, tensor in final.items())
    output = finish(
        start_command(
            *("eval", str(AGENT), "--model", str(trained / "run")),
            *("--set", "eval.tasks=1", "--set", "rollout.max_new_tokens=4"),
        )
    )
    assert "success" in output


@pytest.mark.slow
def test_a_full_run_begins_with_what_an_adapter_run_learnt(trained: Path, tmp_path: Path) -> None:
    finish(start_training(tmp_path, "--init-from", str(trained / "run"), run__steps=1))
    assert not (run_dir(tmp_path).path / "model" / "adapter").exists()


@pytest.mark.slow
def test_a_resumed_adapter_repeats_the_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    finish(start_training(whole, **DETERMINISTIC | LORA | {"run__steps": 4}))
    finish(start_training(cut, **DETERMINISTIC | LORA | {"run__steps": 2}))
    finish(resume(cut, "--steps", "4"))
    assert curve(cut) == curve(whole)
    assert len(curve(whole)) == 4


@pytest.mark.slow
def test_a_run_whose_model_is_gone_says_what_to_put_back(tmp_path: Path) -> None:
    base = Path(shutil.copytree(resolve_model("tiny"), tmp_path / "base"))
    finish(start_training(tmp_path, model=base, run__steps=1, **LORA))
    run = run_dir(tmp_path)
    (checkpoint,) = run.checkpoints.glob("step-*")
    base.rename(tmp_path / "elsewhere")
    told = rf"trains an adapter of the model in {base}, and the weights there are gone.*put the old"
    with pytest.raises(ConfigError, match=told):
        resume_training(run.path, overrides={"run.steps": 2}, quiet=True)
    with pytest.raises(ConfigError, match=told):
        find_model(str(checkpoint))
    assert find_model(str(run.path)) == run.checkpoints / "final", "merged: it needs no base"
    with pytest.raises(
        ConfigError, match=r"trainer\.lora\.rank = 8: a run keeps its adapter \(4\)"
    ):
        resume_training(run.path, settings=["trainer.lora.rank=8"], quiet=True)
    (tmp_path / "elsewhere").rename(base)
    finish(resume(tmp_path, "--steps", "2"))
    assert len(run.read_steps()) == 2
