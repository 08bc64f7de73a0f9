"""Evaluations measure at most `eval.tasks` tasks, and say so."""

import logging

import pytest

import areal_sdk
from areal_sdk.config import parse_config
from areal_sdk.loop.program import load_program
from areal_sdk.loop.runs import make_plan
from areal_sdk.plugins import load_plugins

TASKS = [areal_sdk.Task(str(number)) for number in range(12)]


async def agent(task: areal_sdk.Task, context: areal_sdk.EpisodeContext) -> float:
    return 1.0


def test_an_evaluation_says_which_tasks_it_leaves_out(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = "http://127.0.0.1:9/v1"
    with caplog.at_level(logging.WARNING):
        report = areal_sdk.evaluate(agent, tasks=TASKS, base_url=endpoint, eval={"tasks": 5})
    assert report.num_tasks == 5
    assert "eval: the first 5 of 12 tasks are measured (eval.tasks)" in caplog.text


def test_an_evaluation_of_all_tasks_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    areal_sdk.evaluate(agent, tasks=TASKS, base_url="http://127.0.0.1:9/v1")
    assert caplog.text == ""


def test_a_run_says_it_before_it_starts(caplog: pytest.LogCaptureFixture) -> None:
    config, plugins = parse_config({"model": "tiny", "eval": {"tasks": 5}}), load_plugins()
    program = load_program(config, plugins=plugins, agent=agent)
    given = program.with_tasks({"train": TASKS, "eval": TASKS})
    with caplog.at_level(logging.WARNING):
        plan = make_plan(config, plugins=plugins, program=given)
    assert len(plan.eval_tasks["eval"]) == 5
    assert "eval: the first 5 of 12 tasks are measured (eval.tasks)" in caplog.text
