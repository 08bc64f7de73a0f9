"""A run ends with what to type next."""

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from areal_sdk.cli.summary import print_reports, print_summary, what_next
from areal_sdk.loop.learning.state import RunSummary
from areal_sdk.records.estimates import Interval
from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.telemetry import EpisodeWriter, RunDir
from areal_sdk.types import Episode, Outcome, Task

MEASURED = EvalReport("eval", 8, 8, 8, Interval(0.5, 0.3, 0.7), None, {}, {}, {}, 0, 1.0, 2.0)


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    run = RunDir.create(tmp_path, "my run")
    run.write_config({"agent": "calculator.py", "model": "tiny", "eval": {"after": True}})
    writer = EpisodeWriter(run.episodes)
    for name, split in [("first", "train"), ("second #2", "train"), ("held-out", "eval")]:
        writer.write(Episode(name, Task("t"), (), Outcome.scored(1.0)), version=1, split=split)
    writer.close()
    return run


def test_the_commands_name_the_newest_training_episode_and_the_run(run_dir: RunDir) -> None:
    look, measure = what_next(run_dir, was_measured=True)
    path = str(run_dir.path)
    assert shlex.split(look) == [
        *("next:", "areal-sdk", "inspect", path, "--episode", "second #2"),
    ]
    assert shlex.split(measure) == [
        *("areal-sdk", "eval", "--config", str(run_dir.config), "--model", path)
    ]


def test_a_run_without_held_out_tasks_says_that_nothing_was_measured(run_dir: RunDir) -> None:
    first, *_ = what_next(run_dir, was_measured=False)
    assert first == ("nothing was measured: there are no held-out tasks (--eval-tasks FILE.jsonl)")


def test_the_command_that_measures_asks_for_tasks_where_there_are_only_training_tasks(
    run_dir: RunDir, tmp_path: Path
) -> None:
    tasks = tmp_path / "train.jsonl"
    tasks.write_text("{}")
    run_dir.write_config({"agent": "calculator.py", "tasks": str(tasks)})
    assert what_next(run_dir, was_measured=False)[-1].endswith(" --tasks HELD_OUT.jsonl")
    run_dir.write_config({"agent": "calculator.py", "tasks": str(tasks), "eval_tasks": "b.jsonl"})
    assert "HELD_OUT" not in what_next(run_dir, was_measured=True)[-1]


def test_who_asked_for_no_measurement_is_told_nothing(run_dir: RunDir) -> None:
    run_dir.write_config({"agent": "calculator.py", "eval": {"after": False}})
    assert not any("measured" in line for line in what_next(run_dir, was_measured=False))


def test_there_is_nothing_to_measure_with_where_an_object_or_callers_played(
    run_dir: RunDir,
) -> None:
    run_dir.write_config({"serve": {"learn": True}, "eval": {"after": True}})
    (look,) = what_next(run_dir, was_measured=False)
    assert "inspect" in look


def test_the_summary_ends_with_them(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    measured = {"eval": MEASURED}
    print_summary(
        RunSummary(str(run_dir.path), 3, 3, 61.0, "steps", after=measured, elapsed_s=130.0)
    )
    printed = capsys.readouterr().out
    assert "0.50 [0.30, 0.70]" in printed
    assert "3 steps in 1:01 of training, 2:10 in all; ended: steps" in printed
    assert f"run directory: {run_dir.path}\nnext: areal-sdk inspect" in printed


def test_one_step_is_no_plural(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(RunSummary(str(run_dir.path), 1, 1, 0.2, "steps", elapsed_s=3.0))
    assert "\n1 step in 0:00 of training" in capsys.readouterr().out


def test_a_success_without_the_model_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    print_reports({"tiny": replace(MEASURED, num_uncalled=8)})
    told = capsys.readouterr().err
    assert told == "warning: tiny: 8 of 8 episodes never called the model\n"
