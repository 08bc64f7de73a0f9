"""`eval --record`: the episodes of an evaluation stay, and `inspect` reads them."""

from pathlib import Path

import pytest
from click.testing import CliRunner

import areal_sdk
from areal_sdk import ConfigError, EpisodeContext, Task
from areal_sdk.cli.eval import evaluate
from areal_sdk.cli.records.inspect import inspect
from areal_sdk.telemetry import RunDir

ENDPOINT = "http://127.0.0.1:9/v1"

AGENT = """
from areal_sdk import Task


async def agent(task, context):
    if task.id == "c":
        raise RuntimeError("tired")
    return float(task.id == "b")


def tasks(split):
    return [Task(name) for name in "abc"]
"""


async def agent(task: Task, context: EpisodeContext) -> float:
    return float(task.id == "b")


def test_the_episodes_of_a_recorded_evaluation_are_inspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(AGENT)
    monkeypatch.chdir(tmp_path)
    asked = ["mine.py::agent", "--base-url", ENDPOINT, "--record", "--set", "run.name=kept"]
    output = CliRunner().invoke(evaluate, asked, catch_exceptions=False).output
    assert "its episodes: areal-sdk inspect runs/kept --worst 5" in output
    run = RunDir.open(tmp_path / "runs" / "kept")
    assert {(e.id, e.split, e.reward) for e in run.list_episodes()} == {
        ("eval.a.0", "eval", 0.0),
        ("eval.b.0", "eval", 1.0),
        ("eval.c.0", "eval", None),
    }
    shown = CliRunner().invoke(inspect, ["runs/kept"], catch_exceptions=False).output
    assert "runs/kept: mine.py::agent on smollm2, measured" in shown.replace(f"{tmp_path}/", "")
    assert "eval: eval: tasks 3  success 0.5" in shown
    assert "tired" in shown


def test_the_name_of_a_run_in_the_settings_file_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run itself could not begin otherwise: its directory would exist."""
    (tmp_path / "mine.py").write_text(AGENT)
    (tmp_path / "mix.toml").write_text('run.name = "mix-full"')
    monkeypatch.chdir(tmp_path)
    asked = ["mine.py::agent", "--base-url", ENDPOINT, "--record", "--config", "mix.toml"]
    CliRunner().invoke(evaluate, asked, catch_exceptions=False)
    (kept,) = (tmp_path / "runs").iterdir()
    assert kept.name.startswith("eval-agent-")
    CliRunner().invoke(evaluate, [*asked, "--set", "run.name=kept"], catch_exceptions=False)
    assert (tmp_path / "runs" / "kept").is_dir()


def test_a_model_that_is_not_there_leaves_no_directory(tmp_path: Path) -> None:
    asked = {"model": str(tmp_path / "absent"), "tasks": [Task("a")], "quiet": True}
    run = {"dir": str(tmp_path / "runs")}
    with pytest.raises(ConfigError, match="no model"):
        areal_sdk.evaluate(agent, record=True, run=run, **asked)  # type: ignore[arg-type]
    assert not (tmp_path / "runs").exists()


def test_an_evaluation_that_is_refused_leaves_no_directory(tmp_path: Path) -> None:
    asked = {"base_url": ENDPOINT, "tasks": [Task("a")], "rewards": {"exact_match": 1.0}}
    with pytest.raises(ConfigError, match="reward functions have nothing to look at"):
        areal_sdk.evaluate(agent, record=True, quiet=True, run={"dir": str(tmp_path)}, **asked)  # type: ignore[arg-type]
    assert [*tmp_path.iterdir()] == []


def test_python_names_the_directory_and_nothing_resumes_it(tmp_path: Path) -> None:
    run = {"dir": str(tmp_path)}
    asked = {"tasks": [Task("a"), Task("b")], "base_url": ENDPOINT, "quiet": True, "run": run}
    report = areal_sdk.evaluate(agent, record=True, **asked)  # type: ignore[arg-type]
    assert Path(report.run_dir).parent == tmp_path
    assert Path(report.run_dir).name.startswith("eval-agent-")
    assert not RunDir.open(Path(report.run_dir)).is_in_use()
    with pytest.raises(
        ConfigError, match="only measured and trained nothing: it cannot be resumed"
    ):
        areal_sdk.train(agent, resume=report.run_dir, tasks=[Task("a")])
    assert areal_sdk.evaluate(agent, **asked).run_dir == ""  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == [Path(report.run_dir).name]
