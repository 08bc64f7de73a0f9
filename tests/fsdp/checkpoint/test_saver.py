"""Checkpoints that are written while the trainer goes on."""

import queue
from pathlib import Path

import pytest
import torch

from areal_sdk.errors import CheckpointError
from areal_sdk.fsdp.checkpoint import MANIFEST_FILE, Saver, load_checkpoint
from areal_sdk.fsdp.checkpoint.saving import Snapshot
from areal_sdk.fsdp.step import RankTrainer
from tests.fsdp.episodes import make_groups
from tests.fsdp.specs import trainer_spec


@pytest.fixture
def trainer(model_dir: Path) -> RankTrainer:
    torch.manual_seed(0)
    return RankTrainer(trainer_spec(model_dir, learning_rate=1e-3))


def losses(trainer: RankTrainer, seeds: range) -> list[float]:
    return [trainer.step(make_groups(seed=seed), version=0)["loss"] for seed in seeds]


def test_a_checkpoint_holds_the_moment_at_which_it_was_begun(
    trainer: RankTrainer, tmp_path: Path
) -> None:
    losses(trainer, range(2))
    snapshot = Snapshot.of(trainer, {"step": 2})
    weights = {k: w.detach().clone() for k, w in trainer.policy.named_weights().items()}
    expected = losses(trainer, range(2, 5))  # three steps before a byte is written
    torch.rand(7)
    snapshot.write(tmp_path / "step-2")
    assert load_checkpoint(trainer, tmp_path / "step-2") == {"step": 2}
    for name, weight in trainer.policy.named_weights().items():
        assert torch.equal(weight, weights[name]), name
    assert losses(trainer, range(2, 5)) == expected


def test_a_second_checkpoint_waits_for_the_first(trainer: RankTrainer, tmp_path: Path) -> None:
    saver, ended = Saver(trainer), queue.Queue[BaseException | None]()
    saver.begin(tmp_path / "step-1", {})
    saver.begin(tmp_path / "step-2", {})
    assert (tmp_path / "step-1" / MANIFEST_FILE).is_file(), "whole before the second begins"
    saver.when_written(ended.put)
    assert ended.get(timeout=60) is None
    assert not saver.is_writing
    assert load_checkpoint(trainer, tmp_path / "step-2") == {}


def test_a_failure_in_the_thread_is_told_and_the_next_checkpoint_is_written(
    trainer: RankTrainer, tmp_path: Path
) -> None:
    saver, ended = Saver(trainer), queue.Queue[BaseException | None]()
    (tmp_path / "file").touch()
    saver.begin(tmp_path / "file" / "step-1", {})
    saver.when_written(ended.put)
    assert isinstance(ended.get(timeout=60), CheckpointError)
    saver.begin(tmp_path / "step-1", {})
    saver.when_written(ended.put)
    assert ended.get(timeout=60) is None
