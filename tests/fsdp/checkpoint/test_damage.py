"""A file of a checkpoint that was cut short, or has another bit, is found and named."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from areal_sdk.errors import CheckpointError
from areal_sdk.fsdp.checkpoint import check_files, export_checkpoint, load_checkpoint
from areal_sdk.fsdp.checkpoint.saving import save_checkpoint
from areal_sdk.fsdp.step import RankTrainer
from areal_sdk.telemetry.checksums import MANIFEST_FILE
from tests.fsdp.episodes import make_groups
from tests.fsdp.specs import trainer_spec

TENSORS, STATE, PLACES = "__0_0.distcp", "trainer.json", ".metadata"


@pytest.fixture(scope="module")
def trainer(model_dir: Path) -> RankTrainer:
    trainer = RankTrainer(trainer_spec(model_dir))
    trainer.step(make_groups(seed=1), version=0)
    return trainer


@pytest.fixture(scope="module")
def saved(trainer: RankTrainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved") / "step-000001"
    save_checkpoint(trainer, directory, {})
    return directory


@pytest.fixture
def checkpoint(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / saved.name))


def flip(path: Path, *, at: float) -> None:
    """Change one bit of the byte at this share of the file."""
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 0b100
    path.write_bytes(content)


def cut(path: Path, *, at: float) -> None:
    path.write_bytes(path.read_bytes()[: int(at * path.stat().st_size)])


def test_the_files_of_a_checkpoint_are_the_known_ones_and_it_is_whole(checkpoint: Path) -> None:
    names = {path.name for path in checkpoint.iterdir()}
    assert names == {TENSORS, STATE, PLACES, MANIFEST_FILE}
    check_files(checkpoint)


# The moments lie behind the weights in one file: it is damaged early, in the middle and late.
@pytest.mark.parametrize("at", [0.0, 0.02, 0.4, 0.8, 0.999])
@pytest.mark.parametrize("name", [TENSORS, STATE, PLACES, MANIFEST_FILE])
@pytest.mark.parametrize("damage", [flip, cut])
def test_damage_to_any_file_is_found_and_the_file_named(
    checkpoint: Path, damage: Callable[..., None], name: str, at: float
) -> None:
    damage(checkpoint / name, at=at)
    with pytest.raises(CheckpointError, match=f"step-000001 is damaged: .*{re.escape(name)}"):
        check_files(checkpoint)


@pytest.mark.parametrize("name", [TENSORS, STATE, PLACES])
def test_a_file_that_is_gone_is_named(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    with pytest.raises(CheckpointError, match=f"damaged: {name} is gone"):
        check_files(checkpoint)


def test_a_damaged_checkpoint_is_neither_loaded_nor_exported(
    trainer: RankTrainer, checkpoint: Path, tmp_path: Path
) -> None:
    flip(checkpoint / TENSORS, at=0.5)
    model_dir = trainer.spec.model_dir
    with pytest.raises(CheckpointError, match=f"the content of {TENSORS} has changed"):
        load_checkpoint(trainer, checkpoint)
    with pytest.raises(CheckpointError, match=f"the content of {TENSORS} has changed"):
        export_checkpoint(
            checkpoint,
            tmp_path / "model",
            model_dir=model_dir,
            dtype=next(trainer.policy.parameters()).dtype,
        )
    assert not (tmp_path / "model").exists()


def test_a_checkpoint_of_an_earlier_version_has_no_manifest_and_loads(
    trainer: RankTrainer, checkpoint: Path
) -> None:
    (checkpoint / MANIFEST_FILE).unlink()
    load_checkpoint(trainer, checkpoint)


def test_an_export_beside_the_files_is_no_part_of_them(checkpoint: Path) -> None:
    (checkpoint / "export").mkdir()
    (checkpoint / "export" / "config.json").touch()
    (checkpoint / ".export.lock").touch()
    check_files(checkpoint)
