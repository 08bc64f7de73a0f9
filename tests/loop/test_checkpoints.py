"""Which checkpoint a run goes on from, whatever else lies beside it."""

from pathlib import Path

from areal_sdk.loop.state import latest_checkpoint


def checkpoints(directory: Path, *names: str) -> Path:
    for name in names:
        (directory / name).mkdir()
    return directory


def test_a_copy_that_somebody_keeps_is_no_checkpoint_of_the_run(tmp_path: Path) -> None:
    checkpoints(tmp_path, "step-000040", "step-000040-good", "step-000040 (copy)", "step-x")
    assert latest_checkpoint(tmp_path) == tmp_path / "step-000040"


def test_the_newest_is_the_one_of_the_highest_step(tmp_path: Path) -> None:
    checkpoints(tmp_path, "step-999999", "step-1000000", "step-000020")
    assert latest_checkpoint(tmp_path) == tmp_path / "step-1000000"


def test_a_file_of_that_name_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoints(tmp_path, "step-000000")
    (tmp_path / "step-000099").touch()
    assert latest_checkpoint(tmp_path) == tmp_path / "step-000000"
    assert latest_checkpoint(tmp_path / "none") is None
