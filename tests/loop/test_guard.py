"""The guard in whole runs: weights are put back, the books balance, and a run that falls again and again ends."""

import re
import signal
import subprocess
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from areal_sdk.loop.export.choice import choose
from areal_sdk.loop.plan.models import find_model, weights_of
from areal_sdk.records.diagnosis.collapse import Fall, watched
from tests.loop.runs import (
    DEADLINE_S,
    SCRIPTED_ENGINE,
    finish,
    inspect,
    resume_training,
    run_dir,
    start_command,
    start_training,
)

FALLING = Path(__file__).with_name("falling.py")
PARTS = (*SCRIPTED_ENGINE, "--plugin", str(FALLING), "--set", "trainer.name=falling")
STEADY: dict[str, Any] = {
    "rollout__batch": 32,
    "rollout__group_size": 4,
    "run__keep_checkpoints": 9,
}


def start(directory: Path, *, falls: str, **settings: Any) -> "subprocess.Popen[str]":
    return start_training(
        directory, *PARTS, agent=FALLING, env=falling(directory, falls), **STEADY | settings
    )


def falling(directory: Path, falls: str) -> dict[str, str]:
    return {"AREAL_TEST_FALLS": falls, "AREAL_TEST_QUALITY": str(directory / "quality")}


def told(output: str) -> list[str]:
    """The lines of the guard while the run went on."""
    return re.findall(r"^note: (collapse: .*)$", output, re.MULTILINE)


def kept(directory: Path) -> list[str]:
    return sorted(path.name for path in run_dir(directory).checkpoints.glob("good-*"))


def test_weights_are_put_back_and_after_the_third_time_the_run_ends_with_them(
    tmp_path: Path,
) -> None:
    output = finish(start(tmp_path, falls="9 22 35", run__steps=60))
    run = run_dir(tmp_path)
    steps = run.read_steps()
    backs = [step["step"] for step in steps if "train/rolled_back_to" in step]
    first, second, third = backs
    assert 10 < first < 15
    assert 23 < second < 28
    assert [step["step"] for step in steps] == [*range(1, third + 1)]
    assert [step for step, found in watched(steps) if isinstance(found, Fall)] == backs
    assert [step["train/quality"] for step in steps if first < step["step"] < 22] == [1.0] * (
        21 - first
    )
    assert {step["batch/reward"] > 0.3 for step in steps if first < step["step"] <= 22} == {True}
    lines = told(output)
    assert (
        "the weights and the optimiser of step 0 are back, and the bound of a step is halved (1 time of 3)"
        in lines[0]
    )
    assert re.match(
        r"collapse: reward was 0\.[45]\d and is 0\.00 in the last 3 batches; ", lines[0]
    )
    assert "for the last time: the run ends with them" in lines[2]
    assert lines[0] in inspect(str(run.path))
    books = run.read_ledger() or {}
    assert books["dropped"]["rolled_back"] >= 96
    assert books["started"] == books["trained"] + books["buffered"] + sum(books["dropped"].values())
    end = run.read_metrics(kind="end")[-1]
    assert (end["ended"], end["rollbacks"], end["steps"]) == ("collapsed", 3, third)
    assert (run.checkpoints / "final" / "config.json").is_file()
    assert (tmp_path / "quality").read_text() == "1.0"
    assert kept(tmp_path) == ["good-000000"]
    assert "it collapsed again and again" in finish(resume_training(tmp_path))


def test_ctrl_c_while_weights_are_put_back_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "hold-load").touch()
    process = start(tmp_path, falls="9", run__steps=16)
    deadline = time.monotonic() + DEADLINE_S
    while not (tmp_path / "in-load").exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    for line in process.stdout:
        if "stopping: waits for step" in line:
            break
    (tmp_path / "hold-load").unlink()
    output = finish(process, code=1)
    [back] = [step for step in run_dir(tmp_path).read_steps() if "train/rolled_back_to" in step]
    assert f"step {back['step']} is saved: no step is lost" in output
    assert "(1 time of 3)" in "".join(told(output))
    finish(resume_training(tmp_path, env=falling(tmp_path, "")))
    run = run_dir(tmp_path)
    assert run.read_metrics(kind="end")[-1]["rollbacks"] == 1
    assert run.read_steps()[-1]["train/quality"] == 1.0
    assert kept(tmp_path) == ["good-000000"]


@pytest.mark.parametrize(("guard", "num_warnings"), [("warn", 1), ("off", 0)])
def test_a_guard_that_only_warns_and_none_leave_the_weights(
    tmp_path: Path, guard: str, num_warnings: int
) -> None:
    output = finish(start(tmp_path, falls="8", run__steps=14, run__guard=guard))
    assert (
        len(re.findall(r"warning: the run has collapsed: reward was 0\.[45]", output))
        == num_warnings
    )
    assert run_dir(tmp_path).read_steps()[-1]["train/quality"] == 0.0
    assert kept(tmp_path) == []


def test_a_run_that_ends_with_worse_weights_says_how_to_take_the_better_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AREAL_TEST_QUALITY", str(tmp_path / "quality"))
    output = finish(start(tmp_path, falls="10:0.7", run__steps=18))
    run, good = run_dir(tmp_path), tmp_path / "run" / "checkpoints" / "good-000000"
    assert re.search(
        r"note: the last weights are clearly worse than those of step 0 \(reward 0\.3\d in the last batches, 0\.[45]\d around",
        output,
    )
    assert run.read_metrics(kind="end")[-1]["better"] == 0
    assert weights_of(run) == choose(run).weights == choose(run, step=0).weights == good
    assert (choose(run).step, choose(run).name) == (0, "no step")
    assert choose(run, "last").step == 18
    assert find_model(str(run.path)) == find_model(str(good)) == good / "export"


def test_a_short_run_keeps_nothing(tmp_path: Path) -> None:
    finish(start(tmp_path, falls="", run__steps=2))
    assert kept(tmp_path) == []


@pytest.mark.slow
def test_a_rate_that_is_far_too_high_costs_a_run_some_steps_and_not_what_it_could(
    tmp_path: Path,
) -> None:
    settings = {
        "run.dir": tmp_path,
        "run.name": "run",
        "sft.steps": 200,
        "trainer.learning_rate": 5e-3,
        "trainer.trust_region": 0,
        "eval.before": "false",
        "eval.after": "false",
    }
    given = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    guessing = Path(__file__).parents[2] / "examples" / "agents" / "guess_number.py"
    train = ("train", str(guessing), "--model", "tiny", "--steps", "30", *given)
    assert told(finish(start_command(*train), deadline_s=900.0))
    steps = run_dir(tmp_path).read_steps()
    back = max(step["step"] for step in steps if "train/rolled_back_to" in step)
    assert min(step["batch/success"] for step in steps if step["step"] <= back) < 0.1
    assert fmean(step["batch/success"] for step in steps if step["step"] > back) > 0.35
    assert max(step["train/kl_step"] for step in steps if step["step"] > back) < 0.1
