"""Tasks are checked as they are read, and read no further than they are needed."""

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import areal_sdk
from areal_sdk.config import parse_config
from areal_sdk.errors import ConfigError
from areal_sdk.loop.learning.training import RunPlan, make_plan
from areal_sdk.loop.plan.program import load_program
from areal_sdk.loop.plan.tasks import load_held_out
from areal_sdk.plugins import load_plugins
from areal_sdk.rollout.tasks import BLOCK, TaskSource, TaskStream

AGENT_FILE = """
import itertools
from areal_sdk import Task

num_read = {"train": 0, "eval": 0}

async def agent(task, context):
    return 1.0

def tasks(split):
    for number in itertools.count():
        num_read[split] += 1
        yield Task(f"{split}-{number}")
"""


async def agent(task: areal_sdk.Task, context: areal_sdk.EpisodeContext) -> float:
    return 1.0


def plan_of(given: dict[str, Any] | None = None, **settings: Any) -> RunPlan:
    config, plugins = parse_config({"model": "tiny", **settings}), load_plugins()
    program = load_program(config, plugins=plugins, agent=None if given is None else agent)
    return make_plan(config, plugins=plugins, program=program.with_tasks(given or {}))


def test_tasks_without_an_end_are_read_as_they_are_needed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "endless_agent.py"
    file.write_text(AGENT_FILE)
    with caplog.at_level(logging.WARNING):
        plan = plan_of(agent=str(file))
    num_read = plan.program.tasks.__globals__["num_read"]  # type: ignore[union-attr]
    assert num_read == {"train": BLOCK + 1, "eval": BLOCK + 1}
    assert isinstance(plan.train_tasks, TaskStream)
    assert f"tasks('train') of 'agent' goes on after {BLOCK} tasks" in caplog.text
    assert f"eval: 100 of the first {BLOCK} tasks are measured, drawn by run.seed" in caplog.text
    held_out = plan.eval_tasks["eval"]
    assert (len(held_out.tasks), held_out.num_available) == (100, BLOCK)
    assert all(task.id.startswith("eval-") for task in held_out.tasks)
    source = TaskSource(plan.train_tasks)
    ids = {draw.task.id for draw in (source.next() for _ in range(BLOCK)) if draw is not None}
    assert ids == {f"train-{number}" for number in range(BLOCK)}
    assert num_read["train"] <= 2 * BLOCK + 1


@pytest.mark.parametrize("most", [7, BLOCK + 7])
def test_an_evaluation_of_endless_tasks_ends_and_says_what_it_measured(
    most: int,
) -> None:
    num_read = 0

    def endless() -> Iterator[areal_sdk.Task]:
        nonlocal num_read
        for number in itertools.count():
            num_read += 1
            yield areal_sdk.Task(str(number))

    config, plugins = parse_config({"model": "tiny", "eval": {"tasks": most}}), load_plugins()
    program = load_program(config, plugins=plugins, agent=agent).with_tasks({"eval": endless()})
    said: list[str] = []
    held_out = load_held_out(
        config, "eval", source=None, program=program, plugins=plugins, say=said.append
    )
    limit = max(most, BLOCK)
    assert (len(held_out.tasks), held_out.num_available) == (most, limit)
    assert num_read == limit + 1
    assert f"{most} of the first {limit} tasks are measured" in said[0]


@pytest.mark.parametrize("returned", ["None", 'Task("1")'])
def test_tasks_that_are_not_yielded_are_refused_by_name(tmp_path: Path, returned: str) -> None:
    file = tmp_path / "forgetful_agent.py"
    agent = AGENT_FILE.partition("def tasks")[0]
    file.write_text(f"{agent}def tasks(split):\n    return {returned}\n")
    kind = returned.partition("(")[0].replace("None", "NoneType")
    with pytest.raises(ConfigError, match=rf"tasks\('eval'\) of 'agent' returns {kind}: yield"):
        plan_of(agent=str(file))


def test_a_long_list_is_read_whole(caplog: pytest.LogCaptureFixture) -> None:
    tasks = [areal_sdk.Task(str(number)) for number in range(BLOCK + 5)]
    plan = plan_of({"train": tasks})
    assert plan.train_tasks == tasks
    assert caplog.text == ""


def test_a_generator_that_ends_is_read_whole() -> None:
    plan = plan_of({"train": (areal_sdk.Task(str(number)) for number in range(5))})
    assert plan.train_tasks == [areal_sdk.Task(str(number)) for number in range(5)]


@pytest.mark.parametrize(
    ("settings", "where"),
    [
        ({"rollout": {"workers": 2}}, r"an agent's worker \(rollout.workers = 2\)"),
        ({"rewards": {"contains_answer": 1.0}}, r"the worker of a reward \(contains_answer\)"),
    ],
)
@pytest.mark.parametrize("split", ["train", "eval"])
def test_task_data_that_no_worker_can_read_is_found_before_the_run_begins(
    settings: dict[str, Any], where: str, split: str
) -> None:
    given = {name: [areal_sdk.Task("plain", {"answer": "4"})] for name in ("train", "eval")}
    given[split].append(areal_sdk.Task("odd", {"check": lambda answer: True}))
    with pytest.raises(ConfigError, match=rf"task 'odd' cannot be sent to {where} .*Task\.data"):
        plan_of(given, **settings)


def test_task_data_may_be_anything_where_it_stays() -> None:
    odd = areal_sdk.Task("odd", {"check": lambda answer: True})
    assert plan_of({"train": [odd]}).train_tasks == [odd]
