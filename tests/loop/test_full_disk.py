"""A disk that fills up ends the run with one line; room made, it goes on where it was saved."""

import resource
from pathlib import Path

import orjson
import pytest

from tests.loop.runs import (
    children_of,
    finish,
    resume_training,
    run_dir,
    start_training,
    wait_for_steps,
)

SMALLER_THAN_A_CHECKPOINT = 2_000_000
"""And larger than published weights, which live in memory."""


@pytest.mark.parametrize(
    ("who", "limit", "told"),
    [
        ("main", 1, "error: no space left on the disk of"),
        ("trainer-0", SMALLER_THAN_A_CHECKPOINT, "was not saved, earlier checkpoints stay valid"),
    ],
)
def test_a_full_disk_is_one_line_and_the_run_can_go_on(
    tmp_path: Path, who: str, limit: int, told: str
) -> None:
    process = start_training(tmp_path, run__steps=10_000, run__checkpoint_every=1)
    wait_for_steps(process, tmp_path, 3)
    (pid,) = [process.pid] if who == "main" else children_of(process.pid, who)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    output = finish(process, code=1)
    errors = [line for line in output.splitlines() if line.startswith("error:")]
    assert len(errors) == 1, output
    assert told in errors[0]
    assert "free some" in errors[0]
    assert f"go on with: areal-sdk train --resume {tmp_path / 'run'}" in output
    assert "Traceback" not in output

    saved = max(int(path.name[5:]) for path in run_dir(tmp_path).checkpoints.glob("step-*"))
    finish(resume_training(tmp_path, "--set", f"run.steps={saved + 2}"))
    assert run_dir(tmp_path).read_steps()[-1]["step"] == saved + 2


def test_a_resumed_run_says_which_plugins_are_others_now(tmp_path: Path) -> None:
    finish(start_training(tmp_path, run__steps=1))
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
