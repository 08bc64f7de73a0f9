"""`areal_sdk.train` and `areal_sdk.evaluate`: the commands, from Python."""

import subprocess
import sys

import pytest

import areal_sdk
from areal_sdk.config import parse_config
from areal_sdk.errors import ConfigError
from areal_sdk.loop.plan.program import load_program
from areal_sdk.loop.state import RunSummary
from areal_sdk.loop.training import make_plan
from areal_sdk.plugins import load_plugins

TASKS = [areal_sdk.Task("one"), areal_sdk.Task("two")]


async def agent(task: areal_sdk.Task, context: areal_sdk.EpisodeContext) -> float:
    return 1.0


def test_train_and_evaluate_are_public_and_need_no_torch_to_be_looked_up() -> None:
    code = (
        "import sys, areal_sdk; assert 'areal_sdk.loop' not in sys.modules; "
        "areal_sdk.train, areal_sdk.evaluate; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert {"train", "evaluate"} <= set(areal_sdk.__all__)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        areal_sdk.trian  # noqa: B018


def test_tasks_given_to_train_need_no_held_out_ones() -> None:
    config, plugins = parse_config({"model": "tiny"}), load_plugins()
    program = load_program(config, plugins=plugins, agent=agent).with_tasks({"train": TASKS})
    plan = make_plan(config, plugins=plugins, program=program)
    assert plan.train_tasks == TASKS
    assert plan.eval_tasks == {}


def test_evaluations_without_held_out_tasks_are_refused() -> None:
    config, plugins = parse_config({"model": "tiny", "eval": {"every": 5}}), load_plugins()
    program = load_program(config, plugins=plugins, agent=agent).with_tasks({"train": TASKS})
    with pytest.raises(ConfigError, match="no held-out tasks were given"):
        make_plan(config, plugins=plugins, program=program)


@pytest.mark.parametrize("quiet", [False, True])
def test_evaluate_shows_how_far_it_is_unless_asked_to_be_quiet(
    capsys: pytest.CaptureFixture[str], quiet: bool
) -> None:
    report = areal_sdk.evaluate(agent, tasks=TASKS, base_url="http://127.0.0.1:9/v1", quiet=quiet)
    assert report.num_scored == 2
    assert ("evaluating agent" in capsys.readouterr().err) is not quiet


def test_a_summary_gives_the_reports_that_evaluate_gives() -> None:
    report = areal_sdk.evaluate(agent, tasks=TASKS, base_url="http://127.0.0.1:9/v1", quiet=True)
    summary = RunSummary("runs/x", 1, 1, 2.0, "steps", after={"eval": report})
    assert summary.after["eval"].success == report.success
    assert summary.to_json()["after"] == {"eval": report.metrics()}
    assert summary.numbers()["after/eval/success"] == 1.0
