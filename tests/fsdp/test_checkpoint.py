"""Checkpoints: whole or absent, and bit by bit."""

import errno
import json
import os
import resource
import shutil
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from areal_sdk.config import RunSection
from areal_sdk.errors import CheckpointError
from areal_sdk.fsdp.checkpoint import (
    export_model,
    load_checkpoint,
    roll_back,
    save_checkpoint,
    whole_weights,
)
from areal_sdk.fsdp.collectives import Ranks
from areal_sdk.fsdp.policy import Policy, load_policy
from areal_sdk.fsdp.spec import TrainerSpec
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.telemetry.directories import forget_old, recover, whole_directory
from areal_sdk.trainer import Demonstration

from .episodes import make_groups
from .specs import trainer_spec, with_preset


@pytest.fixture
def spec(model_dir: Path) -> TrainerSpec:
    spec = trainer_spec(model_dir, learning_rate=1e-3, warmup_steps=3)
    return replace(spec, run=RunSection(deterministic=True))


def losses(trainer: RankTrainer, seeds: range) -> list[tuple[float | None, float | None]]:
    """Loss and gradient norm of each step; None where there was nothing to train."""
    steps = [trainer.step(make_groups(seed=seed), version=0) for seed in seeds]
    return [(step.get("loss"), step.get("grad_norm")) for step in steps]


def test_the_same_groups_give_the_same_losses_bit_by_bit(spec: TrainerSpec) -> None:
    assert losses(RankTrainer(spec), range(3)) == losses(RankTrainer(spec), range(3))


@pytest.mark.parametrize("algorithm", ["grpo", "running_baseline", "ppo"])
def test_a_resumed_trainer_repeats_the_uninterrupted_one_bit_by_bit(
    spec: TrainerSpec, tmp_path: Path, algorithm: str
) -> None:
    spec = with_preset(spec, algorithm)
    uninterrupted = losses(RankTrainer(spec), range(5))
    first = RankTrainer(spec)
    assert losses(first, range(2)) == uninterrupted[:2]
    save_checkpoint(first, tmp_path / "step-2", {"kept": 64, "tasks": ["a", "b"]})
    second = RankTrainer(replace(spec, run=RunSection(deterministic=True, seed=99)))
    assert load_checkpoint(second, tmp_path / "step-2") == {"kept": 64, "tasks": ["a", "b"]}
    assert losses(second, range(2, 5)) == uninterrupted[2:]


def test_the_reference_is_the_model_that_the_run_began_with_also_after_a_resume(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    spec = with_preset(spec, "grpo", kl=0.1)
    first, second = RankTrainer(spec), RankTrainer(spec)
    losses(first, range(2))
    save_checkpoint(first, tmp_path / "step-2", {})
    load_checkpoint(second, tmp_path / "step-2")
    assert isinstance(second.reference, Policy)
    begun = load_policy(spec.model_dir).named_weights()
    for name, weight in second.reference.named_weights().items():
        assert torch.equal(weight, begun[name])
        assert not weight.requires_grad
    assert losses(second, range(2, 3)) == losses(first, range(2, 3))


def test_a_critic_begins_where_the_checkpoint_has_none(spec: TrainerSpec, tmp_path: Path) -> None:
    first = RankTrainer(spec)
    losses(first, range(1))
    save_checkpoint(first, tmp_path / "step-1", {})
    second = RankTrainer(with_preset(spec, "ppo"))
    load_checkpoint(second, tmp_path / "step-1")
    assert second.critic is not None
    assert second.critic.num_updates == 0
    losses(second, range(1, 2))
    assert second.critic.num_updates == 1


def test_a_checkpoint_before_the_first_step_loads(spec: TrainerSpec, tmp_path: Path) -> None:
    trainer = RankTrainer(spec)
    save_checkpoint(trainer, tmp_path / "step-0", {})
    expected = losses(trainer, range(1))
    again = RankTrainer(spec)
    losses(again, range(1, 2))
    load_checkpoint(again, tmp_path / "step-0")
    assert losses(again, range(1)) == expected


def test_weights_that_are_put_back_are_those_that_were_kept_and_the_clock_goes_on(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    trainer = RankTrainer(with_preset(spec, "ppo"))
    losses(trainer, range(2))
    save_checkpoint(trainer, tmp_path / "good-2", {})
    kept = learned(trainer)
    losses(trainer, range(2, 4))
    assert not all(map(torch.equal, learned(trainer), kept))
    for tightness in (2.0, 4.0):
        roll_back(trainer, tmp_path / "good-2")
        assert all(map(torch.equal, learned(trainer), kept))
        assert trainer.region.tightness == tightness
    assert trainer.critic is not None
    assert (trainer.num_steps, trainer.critic.num_steps, trainer.num_updates) == (6, 6, 2)
    save_checkpoint(trainer, tmp_path / "step-6", {})
    resumed = RankTrainer(with_preset(spec, "ppo"))
    load_checkpoint(resumed, tmp_path / "step-6")
    assert resumed.region.tightness == 4.0
    assert losses(resumed, range(1)) == losses(trainer, range(1))


def learned(trainer: RankTrainer) -> list[torch.Tensor]:
    """Copies of the weights and the moments of the policy."""
    moments = trainer.optimizer.state.values()
    found = [*trainer.policy.parameters(), *(one for of in moments for one in of.values())]
    return [one.detach().clone() for one in found]


def test_a_step_after_the_weights_of_the_warm_up_were_put_back_is_one_of_the_policy(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    trainer = RankTrainer(spec)
    trainer.learn([Demonstration((1, 2, 3), (False, True, True))], learning_rate=1e-3)
    save_checkpoint(trainer, tmp_path / "good-0", {})
    losses(trainer, range(3))
    roll_back(trainer, tmp_path / "good-0")
    assert (trainer.phase, trainer.num_steps, trainer.num_updates) == ("policy", 4, 0)
    assert not trainer.optimizer.state
    losses(trainer, range(1))
    assert (trainer.num_steps, trainer.num_updates) == (5, 1)


def test_loading_restores_the_generator(spec: TrainerSpec, tmp_path: Path) -> None:
    trainer = RankTrainer(spec)
    save_checkpoint(trainer, tmp_path / "step-1", {})
    expected = torch.rand(3)
    load_checkpoint(trainer, tmp_path / "step-1")
    assert torch.equal(torch.rand(3), expected)


def test_a_checkpoint_of_the_warm_up_resumes_in_the_warm_up(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    row = [Demonstration((1, 2, 3), (False, True, True))]
    trainer = RankTrainer(spec)
    trainer.learn(row, learning_rate=1e-3)
    save_checkpoint(trainer, tmp_path / "sft-1", {})
    expected = trainer.learn(row, learning_rate=1e-3)["loss"]
    again = RankTrainer(spec)
    load_checkpoint(again, tmp_path / "sft-1")
    assert again.learn(row, learning_rate=1e-3)["loss"] == expected


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Writes beyond `size` fail, as they do on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_a_clear_error_and_leaves_the_earlier_checkpoint_valid(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    trainer = RankTrainer(spec)
    losses(trainer, range(1))
    save_checkpoint(trainer, tmp_path / "step-1", {"step": 1})
    expected = losses(trainer, range(1, 2))
    with (
        files_no_larger_than(100_000),
        pytest.raises(CheckpointError, match=r"step-2 was not saved.*stay valid.*no space left"),
    ):
        save_checkpoint(trainer, tmp_path / "step-2", {"step": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]
    assert load_checkpoint(trainer, tmp_path / "step-1") == {"step": 1}
    assert losses(trainer, range(1, 2)) == expected


def test_a_directory_that_is_not_a_checkpoint_is_refused(spec: TrainerSpec, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a checkpoint"):
        load_checkpoint(RankTrainer(spec), tmp_path)


def test_an_export_loads_in_transformers_with_its_tokenizer(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    trainer = RankTrainer(spec)
    losses(trainer, range(2))
    export_model(trainer, tmp_path / "best", dtype=torch.bfloat16)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "best")
    assert exported.dtype is torch.bfloat16
    trained = trainer.policy.named_weights()
    for name, parameter in exported.named_parameters():
        assert torch.equal(parameter, trained[name].detach().bfloat16()), name
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "best")
    assert tokenizer.decode(tokenizer("héllo")["input_ids"]) == "héllo"
    assert tokenizer.chat_template
    # Tied embeddings are saved once; a trainer can start from the result.
    assert "lm_head.weight" not in load_file(tmp_path / "best" / "model.safetensors")
    RankTrainer(replace(spec, model_dir=tmp_path / "best"))


def test_an_export_has_the_modes_that_the_umask_gives_it(spec: TrainerSpec, tmp_path: Path) -> None:
    source = Path(shutil.copytree(spec.model_dir, tmp_path / "model"))
    for path in (*source.iterdir(), source):  # as a cache keeps what nobody is to change
        path.chmod(0o555 if path.is_dir() else 0o400)
    before = os.umask(0o027)
    try:
        trainer = RankTrainer(replace(spec, model_dir=source))
        export_model(trainer, tmp_path / "best", dtype=torch.float32)
    finally:
        os.umask(before)
    modes = {p.name: stat.S_IMODE(p.stat().st_mode) for p in (tmp_path / "best").iterdir()}
    assert modes["model.safetensors"] == 0o640
    assert set(modes.values()) == {0o640}
    assert stat.S_IMODE((tmp_path / "best").stat().st_mode) == 0o750


def fill_and_fail(target: Path) -> None:
    with whole_directory(target) as partial:
        (partial / "a").write_text("new")
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_directory_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "step-1"
    with whole_directory(target) as partial:
        (partial / "a").write_text("old")
        assert not target.exists()
    with pytest.raises(CheckpointError, match="stay valid"):
        fill_and_fail(target)
    assert (target / "a").read_text() == "old"
    with whole_directory(target) as partial:
        (partial / "b").write_text("new")
    assert [p.name for p in target.iterdir()] == ["b"]
    assert list(tmp_path.iterdir()) == [target]


def test_what_a_killed_process_left_behind_is_replaced(tmp_path: Path) -> None:
    (tmp_path / ".step-1.partial").mkdir()
    (tmp_path / ".step-1.partial" / "half").write_text("")
    with whole_directory(tmp_path / "step-1") as partial:
        (partial / "whole").write_text("")
    assert [p.name for p in (tmp_path / "step-1").iterdir()] == ["whole"]


def test_only_numbered_siblings_are_forgotten(tmp_path: Path) -> None:
    for name in ("step-000002", "step-000010", "step-000100", "best", "step-x"):
        (tmp_path / name).mkdir()
    forget_old(tmp_path / "step-000100", keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "best",
        "step-000010",
        "step-000100",
        "step-x",
    ]
    assert forget_old(tmp_path / "best", keep=1) == []


def test_an_old_checkpoint_that_cannot_be_removed_is_told_and_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "other-disk").mkdir()
    (tmp_path / "step-000002").symlink_to(tmp_path / "other-disk")  # rmtree refuses a link
    for name in ("step-000001", "step-000003", "step-000004"):
        (tmp_path / name).mkdir()
    assert forget_old(tmp_path / "step-000004", keep=1) == [
        tmp_path / "step-000001",
        tmp_path / "step-000003",
    ]
    assert "step-000002" in caplog.text
    assert "remove it" in caplog.text


def test_what_killed_saves_left_behind_is_removed_and_what_they_replaced_is_back(
    tmp_path: Path,
) -> None:
    for name in (".step-000002.partial", ".step-000003.partial", ".final.old", ".best.old", "best"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "weights").write_text(name)
    (tmp_path / ".notes").mkdir()
    recover(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".notes", "best", "final"]
    assert (tmp_path / "final" / "weights").read_text() == ".final.old"
    assert (tmp_path / "best" / "weights").read_text() == "best"
    recover(tmp_path / "nowhere")


def test_the_saved_state_is_readable(spec: TrainerSpec, tmp_path: Path) -> None:
    save_checkpoint(RankTrainer(spec), tmp_path / "step-0", {"version": 7})
    state = json.loads((tmp_path / "step-0" / "trainer.json").read_text())
    assert state["extra"] == {"version": 7}


def test_an_export_takes_the_host_memory_of_one_rank_only(spec: TrainerSpec) -> None:
    num_weights = len(RankTrainer(spec).policy.named_weights())
    for rank, num_kept in ((0, num_weights), (1, 0)):
        trainer = RankTrainer(spec, Ranks(rank=rank))
        weights, samples = whole_weights(trainer, dtype=torch.bfloat16)
        assert len(weights) == len(samples) == num_kept


def test_a_checkpoint_whose_baselines_are_means_and_weights_is_read(
    spec: TrainerSpec, tmp_path: Path
) -> None:
    spec = with_preset(spec, "running_baseline")
    old = RankTrainer(spec)
    old.baselines = {"task-0": (0.5, 12.0)}
    save_checkpoint(old, tmp_path / "step-1", {})
    trainer = RankTrainer(spec)
    load_checkpoint(trainer, tmp_path / "step-1")
    losses(trainer, range(1))
    assert trainer.baselines["task-0"][0] == [0.5]
    assert len(trainer.baselines["task-0"]) == 5, "and the four episodes of this step"
