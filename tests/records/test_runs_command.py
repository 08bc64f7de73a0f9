"""`areal-sdk runs`: a list of runs, and runs side by side, also among other directories."""

import json
import os
import pty
import shutil
import sys
from contextlib import suppress
from io import FileIO
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk.cli.records.runs import runs
from areal_sdk.telemetry import MetricsLog, RunDir

from .scripted import SETTINGS, write_run


@pytest.fixture
def root(tmp_path: Path, run: RunDir) -> Path:
    """Runs that ended in every way, and directories that are no runs."""
    shutil.copytree(run.path, tmp_path / "finished")
    other = {**SETTINGS, "algorithm": {"name": "rloo"}, "run": {"steps": 9, "name": "killed"}}
    other["options"] = {"agent": {"wait_s": 3}}
    write_run(tmp_path, "killed", settings=other, steps=2, success=(0.1, 0.2), ended=None)
    failed = write_run(tmp_path, "failed", steps=1, success=None, ended=None)
    metrics = MetricsLog(failed.metrics)
    metrics.log("failed", {"error": "EngineError: out of memory\n\x1b[2J"})
    metrics.close()
    served = RunDir.create(tmp_path, "served")
    served.write_config({"model": "tiny", "serve": {"record": True}})
    live = {**SETTINGS, "run": {"steps": 10**9, "name": "live"}}
    write_run(tmp_path, "live", settings=live, steps=3, success=None)
    begun = RunDir.create(tmp_path, "begun")
    begun.write_config({"model": "/models/mine", "agent": {"name": "x.py"}})
    for name, text in {"torn": "model = ", "foreign": '[package]\nname = "x"', "empty": ""}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.toml").write_text(text)
    strange = write_run(tmp_path, "strange", steps=1)
    strange.metrics.write_bytes(b'[1, 2]\n{"kind": "st')
    (tmp_path / "notes.txt").write_text("mine")
    return tmp_path


def output_of(*arguments: object) -> str:
    result = CliRunner().invoke(runs, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_runs_are_listed_with_what_they_learnt_and_how_they_ended(root: Path) -> None:
    with RunDir(root / "begun").in_use():
        output = output_of(root)
    rows = {line.split()[0]: line.split() for line in output.splitlines() if line.strip()}
    assert rows["finished"][3:] == [
        *("calculator.py", "smollm2", "grpo", "6/6", "success", "0.250", "->", "0.750", "finished")
    ]
    assert rows["killed"][5:] == ["rloo", "2/9", "success", "0.100", "->", "0.200", "interrupted"]
    assert rows["failed"][5:] == ["grpo", "1/6", "-", "failed"]
    assert rows["served"][3:] == ["callers", "tiny", "-", "-", "-", "recorded"]
    assert rows["live"][6] == "3"
    assert rows["begun"][3:] == ["x.py", "mine", "-", "-", "-", "running"]
    assert rows["torn"][-1] == rows["strange"][-1] == "unreadable"
    assert {"foreign", "empty"}.isdisjoint(rows)
    assert "failed: EngineError: out of memory" in output
    assert "\x1b" not in output


def all_of(terminal: FileIO) -> bytes:
    """Everything that was written to a closed terminal. One read gives what has arrived so far."""
    shown = b""
    with suppress(OSError):  # EIO: no process holds the other end, and nothing is left
        while part := terminal.read(10_000):
            shown += part
    return shown


def test_the_cause_at_the_end_of_a_long_error_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = write_run(tmp_path, "run", steps=1, success=None, ended=None)
    metrics = MetricsLog(failed.metrics)
    error = (
        f"64 episodes in a row gave no group to train: {'the agent failed ' * 9}KeyError: 'answer'"
    )
    metrics.log("failed", {"error": f"RolloutError: {error}"})
    metrics.close()
    piped = output_of(tmp_path).splitlines()
    assert f"run: RolloutError: {error}" in piped
    monkeypatch.setenv("COLUMNS", "80")
    main, terminal = pty.openpty()
    with os.fdopen(terminal, "w") as stdout, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", stdout)
        runs([str(tmp_path)], standalone_mode=False)
    with os.fdopen(main, "rb", buffering=0) as shown_at:
        shown = all_of(shown_at).decode()
    told = shown[shown.index("run: Rollout") :].splitlines()
    assert max(map(len, told)) <= 80
    assert " ".join(line.strip() for line in told) == f"run: RolloutError: {error}"


def test_a_run_began_when_its_settings_were_first_written(tmp_path: Path) -> None:
    run = write_run(tmp_path, "run", steps=1)
    began = json.loads(output_of(run.path, "--json"))[0]["began"]
    assert began <= run.read_metrics()[0]["time"]
    later = began + 3600
    run.write_config(run.read_config())  # as a resume does
    os.utime(run.config, (later, later))
    run.metrics.write_bytes(run.metrics.read_bytes().split(b"\n", 1)[1])
    assert json.loads(output_of(run.path, "--json"))[0]["began"] == began


def test_the_newest_run_comes_first(tmp_path: Path) -> None:
    for name in ("c", "a", "b"):
        write_run(tmp_path, name, steps=1)
    listed = json.loads(output_of(tmp_path, "--json"))
    assert [one["name"] for one in listed] == ["b", "a", "c"]
    assert listed[0]["held_out"] == {"measure": "success", "before": 0.25, "after": 0.75}
    assert [one["state"] for one in json.loads(output_of(tmp_path / "a", "--json"))] == ["finished"]


def test_a_step_that_is_measured_again_at_the_end_is_not_the_last_one(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", steps=4, success=(0.25, 0.75))
    metrics = MetricsLog(run.metrics)
    metrics.log("eval", {"name": "step-2-again", "split": "eval", "step": 2, "success": 0.5})
    metrics.close()
    listed = json.loads(output_of(tmp_path, "--json"))
    assert listed[0]["held_out"] == {"measure": "success", "before": 0.25, "after": 0.75}


def test_runs_side_by_side_show_figures_and_the_settings_that_differ(root: Path) -> None:
    output = output_of(root / "finished", root / "killed", root / "failed")
    rows = {line.partition("  ")[0]: line.split()[-3:] for line in output.splitlines() if line}
    assert rows["steps"] == ["6", "2", "1"]
    assert rows["held-out after"] == ["0.75", "0.2", "-"]
    assert rows["seconds a step (median)"] == ["10", "10", "10"], (
        "from step to step, waits included"
    )
    assert rows["algorithm.name"] == ["grpo", "rloo", "grpo"]
    assert rows["run.steps"] == ["6", "9", "6"]
    assert rows["agent.wait_s"] == ["-", "3", "-"], "the key that --set takes"
    assert "run.name" not in output
    data = json.loads(output_of(root / "finished", root / "killed", "--json"))
    assert data["settings"]["run.steps"] == [6, 9]
    assert data["figures"]["episodes trained"] == [24, 8]


def test_equal_settings_and_wrong_directories_are_told(root: Path, tmp_path: Path) -> None:
    twice = (root / "finished", root / "finished")
    assert "all settings are the same" in output_of(*twice)
    (tmp_path / "none").mkdir()
    assert output_of(tmp_path / "none") == f"no runs in {tmp_path / 'none'}\n"
    for asked, told in [
        (["nowhere"], "nowhere is no directory"),
        ([str(root / "finished"), str(root / "none")], "is not a run directory"),
        ([str(root / "finished"), str(root / "torn")], "cannot be read as a run: TOML"),
        ([str(root / "finished"), str(root / "strange")], "no line of metrics.jsonl is an event"),
        ([str(root / "finished"), str(root / "foreign")], "its settings name no model"),
    ]:
        assert told in str(CliRunner().invoke(runs, asked).exception)
