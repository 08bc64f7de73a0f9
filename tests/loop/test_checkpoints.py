"""The checkpoint that a run goes on from, whatever else lies beside it."""

from pathlib import Path

from areal_sdk.loop.learning.state import latest_checkpoint, way_around


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


def test_a_damaged_checkpoint_leads_to_the_one_before_it(tmp_path: Path) -> None:
    checkpoints(tmp_path, "step-000020", "step-000040", "step-000060", "step-000030-good")
    told = way_around(tmp_path / "step-000060")
    assert "the one before, step-000040" in told
    assert f"mv {tmp_path}/step-000060 {tmp_path}/step-000060-damaged" in told
    assert "resume" in told
    assert "no earlier checkpoint" in way_around(tmp_path / "step-000020")
