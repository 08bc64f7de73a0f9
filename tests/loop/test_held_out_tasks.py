"""Evaluations measure at most `eval.tasks` tasks, and say so where nobody chose that."""

import logging

import pytest

import areal_sdk
from areal_sdk.config import parse_config
from areal_sdk.loop.program import load_program
from areal_sdk.loop.runs import make_plan
from areal_sdk.plugins import load_plugins

ENDPOINT = "http://127.0.0.1:9/v1"
TASKS = [areal_sdk.Task(str(number)) for number in range(120)]


async def agent(task: areal_sdk.Task, context: areal_sdk.EpisodeContext) -> float:
    return 1.0


def test_an_evaluation_says_which_tasks_it_leaves_out(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        report = areal_sdk.evaluate(agent, tasks=TASKS, base_url=ENDPOINT, quiet=True)
    assert report.num_tasks == 100
    assert "eval: the first 100 of 120 tasks are measured (eval.tasks)" in caplog.text


@pytest.mark.parametrize("most", [5, 120])
def test_where_the_number_was_chosen_it_says_nothing(
    caplog: pytest.LogCaptureFixture, most: int
) -> None:
    report = areal_sdk.evaluate(
        agent, tasks=TASKS, base_url=ENDPOINT, quiet=True, eval={"tasks": most}
    )
    assert report.num_tasks == most
    assert caplog.text == ""


def test_a_run_says_it_before_it_starts(caplog: pytest.LogCaptureFixture) -> None:
    config, plugins = parse_config({"model": "tiny"}), load_plugins()
    program = load_program(config, plugins=plugins, agent=agent)
    given = program.with_tasks({"train": TASKS, "eval": TASKS})
    with caplog.at_level(logging.WARNING):
        plan = make_plan(config, plugins=plugins, program=given)
    assert len(plan.eval_tasks["eval"]) == 100
    assert "eval: the first 100 of 120 tasks are measured (eval.tasks)" in caplog.text
