"""Evaluations measure at most `eval.tasks` tasks: a sample by seed, and the report says of how many."""

import itertools
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import areal_sdk
from areal_sdk.cli.summary import print_reports
from areal_sdk.config import parse_config
from areal_sdk.errors import ConfigError
from areal_sdk.loop.learning.training import RunPlan, make_plan
from areal_sdk.loop.plan.overlap import trained_on
from areal_sdk.loop.plan.program import load_program
from areal_sdk.loop.plan.tasks import HeldOut, load_held_out
from areal_sdk.plugins import load_plugins
from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.telemetry import MetricsLog, RunDir
from areal_sdk.types import Task
from tests.builtin.saved_dataset import saved as write_saved_dataset

ENDPOINT = "http://127.0.0.1:9/v1"
TASKS = [Task(str(number)) for number in range(120)]
FAMILIES = ("add", "copy", "maze", "sort", "sum")
MIXTURE = [
    Task(f"{family}-{number}", {"source": family}) for family in FAMILIES for number in range(100)
]
"""One family after the other, as files of mixtures are."""


async def agent(task: Task, context: areal_sdk.EpisodeContext) -> float:
    return 1.0 if task.source != "maze" else 0.0


def evaluate(tasks: list[Task], **settings: Any) -> EvalReport:
    return areal_sdk.evaluate(agent, tasks=tasks, base_url=ENDPOINT, quiet=True, **settings)


def held_out(tasks: list[Task], *, seed: int, most: int) -> HeldOut:
    config, plugins = (
        parse_config({"run": {"seed": seed}, "eval": {"tasks": most}}),
        load_plugins(),
    )
    program = load_program(config, plugins=plugins, agent=agent).with_tasks({"eval": tasks})
    return load_held_out(
        config, "eval", source=None, program=program, plugins=plugins, say=pytest.fail
    )


def test_a_mixture_is_measured_on_all_of_its_sources() -> None:
    report = evaluate(MIXTURE)
    assert (report.num_tasks, report.num_available) == (100, 500)
    assert sorted(report.by_source) == sorted(FAMILIES)
    assert sum(part.num_tasks for part in report.by_source.values()) == 100
    rates = {name: part.success.value for name, part in report.by_source.items() if part.success}
    assert rates == {"add": 1.0, "copy": 1.0, "maze": 0.0, "sort": 1.0, "sum": 1.0}
    assert report.metrics()["source/maze/success"] == 0.0


def test_the_table_says_of_how_many_and_by_source(capsys: pytest.CaptureFixture[str]) -> None:
    print_reports({"tiny": evaluate(MIXTURE)})
    lines = capsys.readouterr().out.splitlines()
    assert "100 of 500" in lines[2]
    assert [line.split()[0] for line in lines[3:]] == sorted(FAMILIES)


def test_the_sample_follows_the_seed_and_keeps_the_order_of_the_file() -> None:
    drawn = [held_out(TASKS, seed=seed, most=10).tasks for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    assert drawn[0] != TASKS[:10], "the first ones are no sample"
    assert list(drawn[0]) == sorted(drawn[0], key=TASKS.index)


def test_more_than_there_are_is_all_of_them() -> None:
    assert held_out(TASKS, seed=0, most=500) == HeldOut(tuple(TASKS), 120)


def test_tasks_without_a_source_add_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    report = evaluate(TASKS[:5])
    assert report.by_source == {}
    assert not any(key.startswith("source/") for key in report.metrics())
    print_reports({"tiny": report})
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize("number", [1, 33])
def test_one_source_or_a_text_for_every_task_is_no_family(number: int) -> None:
    tasks = [Task(str(index), {"source": f"text {index % number}"}) for index in range(40)]
    assert evaluate(tasks).by_source == {}


def test_tasks_that_name_no_source_are_told_beside_those_that_do() -> None:
    tasks = [Task("1", {"family": "add"}), Task("2", {"family": "maze"}), Task("3")]
    assert sorted(evaluate(tasks).by_source) == ["add", "maze", "other"]


def test_an_evaluation_says_that_it_measures_a_sample(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        report = evaluate(TASKS)
    assert report.num_tasks == 100
    assert "eval: 100 of 120 tasks are measured, drawn by run.seed = 0 (eval.tasks)" in caplog.text


@pytest.mark.parametrize("most", [5, 120])
def test_where_the_number_was_chosen_only_the_report_says_it(
    caplog: pytest.LogCaptureFixture, most: int
) -> None:
    report = evaluate(TASKS, eval={"tasks": most})
    assert (report.num_tasks, report.num_available) == (most, 120)
    assert caplog.text == ""


def test_a_run_says_it_before_it_starts(caplog: pytest.LogCaptureFixture) -> None:
    config, plugins = parse_config({"model": "tiny"}), load_plugins()
    program = load_program(config, plugins=plugins, agent=agent)
    given = program.with_tasks({"train": TASKS, "eval": TASKS})
    with caplog.at_level(logging.WARNING):
        plan = make_plan(config, plugins=plugins, program=given)
    assert len(plan.eval_tasks["eval"].tasks) == 100
    assert "eval: 100 of 120 tasks are measured, drawn by run.seed = 0 (eval.tasks)" in caplog.text


def planned(train: list[Task], held_out: list[Task]) -> tuple[str, ...]:
    """The warnings of a plan that trains and measures on these tasks."""
    config, plugins = parse_config({"model": "tiny"}), load_plugins()
    program = load_program(config, plugins=plugins, agent=agent)
    given = program.with_tasks({"train": train, "eval": held_out})
    return make_plan(config, plugins=plugins, program=given).warnings


def test_tasks_that_ignore_their_split_are_told(caplog: pytest.LogCaptureFixture) -> None:
    def tasks(split: str) -> list[Task]:
        return [Task(str(number), {"question": f"{number} + 1"}) for number in range(40)]

    config, plugins = parse_config({"model": "tiny"}), load_plugins()
    program = replace(load_program(config, plugins=plugins, agent=agent), tasks=tasks)
    (warning,) = make_plan(config, plugins=plugins, program=program).warnings
    assert warning.startswith("eval: all 40 held-out tasks are training tasks too")
    assert "tasks(split)" in warning
    assert "--eval-tasks" in warning
    assert warning in caplog.text


def test_a_stream_that_ignores_its_split_is_told_too() -> None:
    def tasks(split: str) -> Iterator[Task]:
        return (Task(str(number), {"question": f"{number} + 1"}) for number in itertools.count())

    config, plugins = parse_config({"model": "tiny"}), load_plugins()
    program = replace(load_program(config, plugins=plugins, agent=agent), tasks=tasks)
    (warning,) = make_plan(config, plugins=plugins, program=program).warnings
    assert warning.startswith("eval: all 100 measured held-out tasks are training tasks too")


def test_files_that_overlap_are_told_by_what_is_in_their_tasks() -> None:
    train = [Task(f"a{number}", {"question": f"{number} + 1"}) for number in range(8)]
    held_out = [Task(f"b{number}", {"question": f"{number} + 1"}) for number in range(6, 10)]
    (warning,) = planned(train, held_out)
    assert warning.startswith("eval: 2 of 4 held-out tasks are training tasks too")


def conversation(number: int, call: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": f'{{"at": {number}}}'}
    calls = [{"id": call, "type": "function", "function": function}]
    return {
        "messages": [
            {"role": "user", "content": f"What is at {number}?"},
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": call, "content": "A tree."},
            {"role": "assistant", "content": "A tree."},
        ]
    }


def test_two_exports_of_a_conversation_are_one_task() -> None:
    train = [Task(f"a{number}", conversation(number, f"call_{number}")) for number in range(8)]
    held_out = [Task(f"b{number}", conversation(number, f"x{number}")) for number in range(6, 10)]
    (warning,) = planned(train, held_out)
    assert warning.startswith("eval: 2 of 4 held-out tasks are training tasks too")


def test_an_evaluation_on_conversations_that_were_imitated_is_told(tmp_path: Path) -> None:
    rows = [json.dumps(conversation(number, "a")) for number in range(3)]
    (file := tmp_path / "rows.jsonl").write_text("\n".join(rows))
    run = trained(tmp_path, file)
    run.write_config({"model": "tiny", "finetune": {"objective": "sft", "data": [str(file)]}})
    given = HeldOut([Task(f"{n}", conversation(n, "b")) for n in range(2, 5)], 3)
    config, plugins = parse_config({"model": str(run.path)}), load_plugins()
    program = load_program(config, plugins=plugins, agent=agent)
    told = trained_on(config, given, "eval", program=program, plugins=plugins)
    assert "was trained on 1 of 3 tasks that are measured" in told


@pytest.mark.parametrize("data", [{}, {"source": "maze"}])
def test_tasks_that_only_their_ids_tell_apart_are_compared_by_id(data: dict[str, Any]) -> None:
    train = [Task(f"train-{number}", data) for number in range(8)]
    held_out = [Task(f"eval-{number}", data) for number in range(8)]
    assert planned(train, held_out) == ()
    (warning,) = planned(train, [*held_out, train[3]])
    assert warning.startswith("eval: 1 of 9 held-out tasks are training tasks too")


DATASETS = """
from areal_sdk import Task, hookimpl

def sums(split, *, held_out: int = 3):
    number = {"train": 8, "eval": held_out}.get(split, 0)
    return [Task(f"{split}-{n}", {"question": f"{split} {n} + 1?"}) for n in range(number)]

@hookimpl
def register_datasets(register):
    register("sums", sums)
"""


@pytest.fixture
def plan_of_sums(tmp_path: Path) -> Callable[..., RunPlan]:
    (tmp_path / "plugin.py").write_text(DATASETS)

    def plan(given: dict[str, list[Task]] | None = None, **settings: Any) -> RunPlan:
        files = [str(tmp_path / "plugin.py")]
        settings = {"model": "tiny", "tasks": "sums", "plugins": files, **settings}
        config, plugins = parse_config(settings), load_plugins(files=map(Path, files))
        program = load_program(config, plugins=plugins, agent=agent).with_tasks(given or {})
        return make_plan(config, plugins=plugins, program=program)

    return plan


def test_a_run_on_a_dataset_measures_the_tasks_that_it_holds_out(
    plan_of_sums: Callable[..., RunPlan], caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of_sums(eval={"every": 5})
    assert [task.id for task in plan.eval_tasks["eval"].tasks] == ["eval-0", "eval-1", "eval-2"]
    assert caplog.text == ""
    assert plan_of_sums(eval={"before": False, "after": False}).eval_tasks == {}


def test_a_dataset_that_holds_nothing_out_is_told(
    plan_of_sums: Callable[..., RunPlan], caplog: pytest.LogCaptureFixture
) -> None:
    none = {"tasks.sums": {"held_out": 0}}
    assert plan_of_sums(options=none).eval_tasks == {}
    assert (
        "dataset 'sums' (eval): no tasks, so nothing is measured on them (--eval-tasks"
        in caplog.text
    )
    with pytest.raises(ConfigError, match=r"eval.every = 5, but no held-out tasks were given"):
        plan_of_sums(options=none, eval={"every": 5})
    with pytest.raises(ConfigError, match=r"dataset 'sums' \(eval\): no tasks"):
        plan_of_sums(eval_tasks="sums", options=none)


def test_only_the_splits_that_a_dataset_has_are_measured(
    plan_of_sums: Callable[..., RunPlan], caplog: pytest.LogCaptureFixture
) -> None:
    assert [*plan_of_sums(eval={"splits": ["eval", "hard"]}).eval_tasks] == ["eval"]
    assert "dataset 'sums' (hard): no tasks" in caplog.text


def directory_of_splits(directory: Path, **rows: list[str]) -> Path:
    """A directory of files that are named after their splits."""
    directory.mkdir()
    for name, questions in rows.items():
        lines = (json.dumps({"question": question}) for question in questions)
        (directory / f"{name}.jsonl").write_text("\n".join(lines))
    return directory


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_run_on_rows_of_several_splits_measures_the_one_that_is_held_out(
    tmp_path: Path, plan_of_sums: Callable[..., RunPlan], caplog: pytest.LogCaptureFixture
) -> None:
    both = directory_of_splits(tmp_path / "both", train=["1?", "2?"], validation=["3?"])
    held_out = plan_of_sums(tasks=str(both)).eval_tasks["eval"].tasks
    assert [task.data["question"] for task in held_out] == ["3?"]
    assert caplog.text == ""
    one = directory_of_splits(tmp_path / "one", train=["1?", "2?"])
    assert plan_of_sums(tasks=str(one)).eval_tasks == {}
    assert f"{one}: no tasks, so nothing is measured on them (--eval-tasks" in caplog.text
    with pytest.raises(ConfigError, match="has no split 'eval', only train"):
        plan_of_sums(tasks=str(both), eval_tasks=str(one))


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_parts_of_a_mixture_are_measured_on_the_splits_that_they_hold_out(
    tmp_path: Path, plan_of_sums: Callable[..., RunPlan]
) -> None:
    both = directory_of_splits(tmp_path / "both", train=["1?", "2?"], test=["3?"])
    one = directory_of_splits(tmp_path / "one", train=["1?", "2?"])
    parts = [{"tasks": str(both)}, {"tasks": str(one)}]
    held_out = plan_of_sums(tasks=None, mixture=parts).eval_tasks["eval"].tasks
    assert [(task.source, task.data["question"]) for task in held_out] == [("both", "3?")]


def test_a_mixture_without_held_out_tasks_is_trained_and_not_measured(
    tmp_path: Path, plan_of_sums: Callable[..., RunPlan], caplog: pytest.LogCaptureFixture
) -> None:
    parts: list[dict[str, str]] = [
        {"tasks": str(directory_of_splits(tmp_path / name, train=["1?", "2?"]))} for name in "ab"
    ]
    assert plan_of_sums(tasks=None, mixture=parts).eval_tasks == {}
    assert "mixture (eval): no tasks, so nothing is measured on them" in caplog.text
    parts[1]["eval_tasks"] = parts[1]["tasks"]
    with pytest.raises(ConfigError, match="has no split 'eval', only train"):
        plan_of_sums(tasks=None, mixture=parts)


def test_a_saved_dataset_of_one_split_holds_nothing_out(
    tmp_path: Path, plan_of_sums: Callable[..., RunPlan]
) -> None:
    saved = write_saved_dataset(tmp_path / "saved", [{"question": "1?"}])
    assert plan_of_sums(tasks=str(saved)).eval_tasks == {}


def test_tasks_from_python_stand_in_for_those_of_a_dataset(
    plan_of_sums: Callable[..., RunPlan],
) -> None:
    plan = plan_of_sums({"eval": TASKS[:2]}, eval={"splits": ["eval"]})
    assert plan.eval_tasks["eval"].tasks == tuple(TASKS[:2])


def trained(tmp_path: Path, tasks: Path) -> RunDir:
    """A run that trained on `tasks`, without its processes."""
    run = RunDir.create(tmp_path, "trained")
    run.write_config({"agent": "vowels.py", "model": "tiny", "tasks": str(tasks)})
    log = MetricsLog(run.metrics)
    log.log("step", {"step": 1})
    log.close()
    return run


def test_an_evaluation_of_a_run_on_its_training_tasks_is_told(tmp_path: Path) -> None:
    train, others = tmp_path / "train.jsonl", tmp_path / "others.jsonl"
    for file, first in ((train, 0), (others, 100)):
        rows = [
            f'{{"question": "{first + n} + 1", "answer": "{first + n + 1}"}}\n' for n in range(8)
        ]
        file.write_text("".join(rows))
    run = trained(tmp_path, train)
    plugins = load_plugins()

    def warning(tasks: Path, model: Path) -> str:
        config = parse_config({"model": str(model), "tasks": str(tasks)})
        program = load_program(config, plugins=plugins, agent=agent)
        given = load_held_out(
            config, "eval", source=str(tasks), program=program, plugins=plugins, say=print
        )
        return trained_on(config, given, "eval", program=program, plugins=plugins)

    told = warning(train, run.path)
    assert f"eval: {run.path} was trained on all 8 tasks that are measured" in told
    assert "--tasks FILE.jsonl" in told
    assert warning(train, run.checkpoints / "best") == told
    assert warning(others, run.path) == ""
    assert warning(train, tmp_path) == "", "no run"
