"""A disk that fills up ends the run with one line; room made, it goes on where it was saved."""

import resource
import subprocess
import time
from pathlib import Path

import orjson
import pytest

from tests.loop.runs import (
    SCRIPTED,
    SCRIPTED_ENGINE,
    children_of,
    finish,
    resume_training,
    run_dir,
    start_training,
    wait_for_steps,
)

SMALLER_THAN_A_CHECKPOINT = 2_000_000
"""Bytes that are fewer than a checkpoint has, and more than published weights, which live in
memory."""


def test_a_full_disk_is_one_line_and_the_run_can_go_on(tmp_path: Path) -> None:
    process = start_training(tmp_path, *SCRIPTED, run__steps=10_000, run__checkpoint_every=1)
    wait_for_steps(process, tmp_path, 3)
    (tmp_path / "hold-step").touch()
    while not (tmp_path / "in-step").exists():
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.01)
    fill_disk(process.pid, 1)
    (tmp_path / "hold-step").unlink()
    ends_in_one_line_and_goes_on(process, tmp_path, "error: no space left on the disk of")


@pytest.mark.long
def test_a_checkpoint_that_does_not_fit_on_the_disk_is_one_line_and_the_run_can_go_on(
    tmp_path: Path,
) -> None:
    process = start_training(tmp_path, *SCRIPTED_ENGINE, run__steps=10_000, run__checkpoint_every=1)
    wait_for_steps(process, tmp_path, 2)
    (trainer,) = children_of(process.pid, "trainer-0")
    fill_disk(trainer, SMALLER_THAN_A_CHECKPOINT)
    told = "was not saved, earlier checkpoints stay valid"
    ends_in_one_line_and_goes_on(process, tmp_path, told)


def fill_disk(pid: int, limit: int) -> None:
    """No file of process `pid` can grow beyond `limit` bytes any more."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))


def ends_in_one_line_and_goes_on(
    process: "subprocess.Popen[str]", tmp_path: Path, told: str
) -> None:
    output = finish(process, code=1)
    errors = [line for line in output.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, output
    assert told in errors[0]
    assert "free some" in errors[0]
    assert f"go on with: areal-sdk train --resume {tmp_path / 'run'}" in output
    assert f"look for faults: areal-sdk why {tmp_path / 'run'}" in output
    assert "Traceback" not in output

    saved = max(int(path.name[5:]) for path in run_dir(tmp_path).checkpoints.glob("step-*"))
    finish(resume_training(tmp_path, "--set", f"run.steps={saved + 2}"))
    assert run_dir(tmp_path).read_steps()[-1]["step"] == saved + 2


def test_a_resumed_run_says_which_plugins_are_others_now(tmp_path: Path) -> None:
    finish(start_training(tmp_path, *SCRIPTED, run__steps=1))
    run = run_dir(tmp_path)
    recorded = run.read_plugins()
    assert recorded is not None
    (name, version), *_ = recorded["installed"].items()
    recorded["installed"][name] = "0.0.1"
    run.plugins.write_bytes(orjson.dumps(recorded))
    output = finish(resume_training(tmp_path, "--steps", "2"))
    assert f"warning: plugin {name} was 0.0.1, now it is {version}" in output
    recorded = run.read_plugins()
    assert recorded is not None
    assert recorded["installed"][name] == version
    assert recorded["earlier"][0]["installed"][name] == "0.0.1"
