"""Plugins that observe a run are told of its events."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.loop.runs import (
    AGENT,
    SCRIPTED_ENGINE,
    finish,
    readable_by_others,
    run_dir,
    start_training,
)

OBSERVER = """

import json


def tell(hook, **values):
    print("observed", json.dumps({"hook": hook, **values}), flush=True)


class Tired(Vowels):
    async def run(self, task, context):
        if context.split == "train" and context.seed % 8 == 0:
            raise RuntimeError("tired")
        return await super().run(task, context)


@areal_sdk.hookimpl
def on_run_start(name, run_dir, settings):
    tell("on_run_start", name=name, run_dir=run_dir, steps=settings["run"]["steps"])


@areal_sdk.hookimpl
def on_evaluation(name, split, step, metrics):
    tell("on_evaluation", name=name, split=split, step=step, metrics=dict(metrics))


class Named:
    def __init__(self, *, word: str = "?") -> None:
        self.word = word

    @areal_sdk.hookimpl
    def on_eval_episode(self, name, split, episode):
        tell("on_eval_episode", word=self.word, name=name, split=split, id=episode.id)


@areal_sdk.hookimpl
def register_observers(register):
    register("named", Named)
    register("unnamed", Named)


@areal_sdk.hookimpl
def on_episode(episode, dropped):
    tell("on_episode", id=episode.id, dropped=dropped)


@areal_sdk.hookimpl
def on_step(step, metrics):
    tell("on_step", step=step, metrics={name: float(value) for name, value in metrics.items()})


@areal_sdk.hookimpl
def on_run_end(run_dir, summary):
    tell("on_run_end", summary={name: float(value) for name, value in summary.items()})
"""


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A run, and what its agent's file observed of it."""
    directory = tmp_path_factory.mktemp("run")
    agent = directory / "observer.py"
    agent.write_text(AGENT.read_text() + OBSERVER)
    process = start_training(
        directory,
        *SCRIPTED_ENGINE,
        agent=Path(f"{agent}::Tired"),
        run__steps=2,
        eval__after=True,
        eval__tasks=4,
        observer__named__word="heard",
    )
    lines = [line for line in finish(process).splitlines() if line.startswith("observed ")]
    return directory, [json.loads(line.removeprefix("observed ")) for line in lines]


def told(observed: tuple[Path, list[dict[str, Any]]], hook: str) -> list[dict[str, Any]]:
    return [call for call in observed[1] if call["hook"] == hook]


def test_on_run_start_comes_first_with_name_directory_and_settings(
    observed: tuple[Path, list[dict[str, Any]]],
) -> None:
    begun = {"hook": "on_run_start", "name": "run", "run_dir": str(observed[0] / "run"), "steps": 2}
    assert observed[1][0] == begun
    assert told(observed, "on_run_start") == [begun]


def test_on_evaluation_is_given_the_numbers_of_each_split(
    observed: tuple[Path, list[dict[str, Any]]],
) -> None:
    (call,) = told(observed, "on_evaluation")
    assert (call["name"], call["split"], call["step"]) == ("after", "eval", 2)
    (row,) = run_dir(observed[0]).read_metrics(kind="eval")
    assert (call["metrics"]["tasks"], call["metrics"]["reward"]) == (4.0, row["reward"])


def test_an_observer_that_the_run_names_is_made_once_with_its_options(
    observed: tuple[Path, list[dict[str, Any]]],
) -> None:
    calls = told(observed, "on_eval_episode")
    assert len(calls) == 4
    assert {(call["word"], call["name"], call["split"]) for call in calls} == {
        ("heard", "after", "eval")
    }
    settings = run_dir(observed[0]).read_config()
    assert settings["observers"] == ["named"]


def test_on_episode_tells_what_is_dropped_from_what_is_kept(
    observed: tuple[Path, list[dict[str, Any]]],
) -> None:
    calls = told(observed, "on_episode")
    reasons = {call["id"]: call["dropped"] for call in calls}
    assert set(reasons.values()) == {"", "error_agent"}
    stored = {e.id: e.dropped or "" for e in run_dir(observed[0]).list_episodes()}
    assert {id_: stored[id_] for id_ in reasons} == reasons


def test_on_step_is_given_the_numbers_of_the_metrics(
    observed: tuple[Path, list[dict[str, Any]]],
) -> None:
    steps = told(observed, "on_step")
    assert [call["step"] for call in steps] == [1, 2]
    row = run_dir(observed[0]).read_steps()[1]
    metrics = steps[1]["metrics"]
    assert metrics["ledger/trained"] == row["ledger"]["trained"] > 0
    assert metrics["train/loss"] == row["train/loss"]


def test_every_trained_episode_names_its_step_and_its_advantage(
    observed: tuple[Path, list[dict[str, Any]]],
) -> None:
    run = run_dir(observed[0])
    episodes = list(run.list_episodes())
    trained = [e for e in episodes if e.step is not None]
    assert len(trained) == run.read_steps()[-1]["ledger"]["trained"]
    assert {e.step for e in trained} == {1, 2}
    assert all(e.split == "train" and e.dropped is None for e in trained)
    for one in trained:
        siblings = [e.reward or 0.0 for e in trained if e.group == one.group]
        above = (one.reward or 0.0) - sum(siblings) / len(siblings)
        assert one.advantage is not None
        assert one.advantage * above >= 0.0
        has_mean = abs(above) < 1e-9  # the mean of equal rewards is rounded
        assert (one.advantage == 0.0) == has_mean
    assert all(e.text for e in trained)


def test_nobody_else_reads_what_a_run_writes(
    observed: tuple[Path, list[dict[str, Any]]],
) -> None:
    run = run_dir(observed[0])
    assert {path.name for path in run.logs.iterdir()} >= {"trainer-0.log"}
    assert readable_by_others(run.path) == []


def test_a_run_ends_with_its_report(observed: tuple[Path, list[dict[str, Any]]]) -> None:
    report = run_dir(observed[0]).report.read_text()
    assert "finished</p>" in report
    assert 'aria-label="training reward"' in report


def test_on_run_end_is_told_how_it_went(observed: tuple[Path, list[dict[str, Any]]]) -> None:
    (end,) = told(observed, "on_run_end")
    summary = end["summary"]
    assert (summary["steps"], summary["version"]) == (2, 2)
    assert summary["ledger/trained"] > 0
    assert 0 < summary["train_seconds"] < summary["elapsed_s"]
    assert summary["after/eval/tasks"] == 4
