"""`areal_sdk.train` and `areal_sdk.evaluate`: the commands, from Python."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import areal_sdk
from areal_sdk.config import parse_config
from areal_sdk.errors import ConfigError
from areal_sdk.loop.api import plan_training
from areal_sdk.loop.learning.state import RunSummary
from areal_sdk.loop.learning.training import RunPlan, make_plan
from areal_sdk.loop.plan.parts import reward_specs
from areal_sdk.loop.plan.program import load_program
from areal_sdk.loop.runs import Training
from areal_sdk.plugins import load_plugins

TASKS = [areal_sdk.Task("one"), areal_sdk.Task("two")]


async def agent(task: areal_sdk.Task, context: areal_sdk.EpisodeContext) -> float:
    return 1.0


def test_train_and_evaluate_need_no_torch_to_be_looked_up() -> None:
    code = (
        "import sys, areal_sdk; assert 'areal_sdk.loop' not in sys.modules; "
        "areal_sdk.train, areal_sdk.evaluate; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_train_and_evaluate_are_public() -> None:
    assert {"train", "evaluate"} <= set(areal_sdk.__all__)


def test_a_name_that_the_package_does_not_have_is_an_attribute_error() -> None:
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


class World(areal_sdk.Environment):
    async def reset(self, task: areal_sdk.Task) -> list[areal_sdk.Message]:
        return [{"role": "user", "content": "?"}]

    async def step(self, message: areal_sdk.Message) -> areal_sdk.StepResult:
        return areal_sdk.StepResult(done=True)


def polite(episode: areal_sdk.Episode) -> float:
    return float("please" in episode.final_text)


def planned(agent: object = None, **arguments: Any) -> Training:
    given = {"train": arguments.pop("tasks", TASKS), "eval": arguments.pop("eval_tasks", None)}
    training = plan_training(agent, arguments, model="tiny", tasks=given, resume=None, quiet=True)
    assert isinstance(training, Training)
    return training


REWARDS: dict[str, tuple[Any, dict[str, float]]] = {
    "a function": (polite, {"polite": 1.0}),
    "functions and names": ([polite, "exact_match"], {"polite": 1.0, "exact_match": 1.0}),
    "weights": ({polite: 0.5, "exact_match": 2.0}, {"polite": 0.5, "exact_match": 2.0}),
    "a name for it": ({"kind": polite}, {"kind": 1.0}),
}


@pytest.mark.parametrize(("given", "weights"), REWARDS.values(), ids=REWARDS)
def test_rewards_may_be_functions(given: Any, weights: dict[str, float]) -> None:
    training = planned(agent, rewards=given)
    plan = training.plan
    assert isinstance(plan, RunPlan)
    assert plan.config.rewards == weights
    specs = reward_specs(plan.config, plan.plugins)
    assert [spec.name for spec in specs] == list(weights)
    assert any(spec.reference.endswith("::polite") for spec in specs)
    assert training.call == {"agent": "agent", "tasks": "...", "rewards": "..."}  # for a resume


def test_an_environment_is_given_by_class_or_by_name() -> None:
    training = planned(env=World)
    assert training.plan.name == "World"
    assert training.call == {"agent": "World", "tasks": "..."}
    assert planned(command="true").call == {"agent": "None", "tasks": "..."}
    with pytest.raises(ConfigError, match="unknown environment 'no_such'"):
        planned(env="no_such")


def test_tasks_are_tasks_or_dicts_or_a_name(tmp_path: Path) -> None:
    rows = [{"question": "1+1?"}, {"id": 7, "question": "2+2?"}]
    plan = planned(agent, tasks=rows, eval_tasks=(row for row in rows)).plan
    assert isinstance(plan, RunPlan)
    expected = [
        areal_sdk.Task("train-0", {"question": "1+1?"}),
        areal_sdk.Task("7", {"question": "2+2?"}),
    ]
    assert plan.train_tasks == expected
    assert [task.id for task in plan.eval_tasks["eval"].tasks] == ["eval-0", "7"]
    (tmp_path / "tasks.csv").write_text("question\n1+1?\n")
    from_file = planned(agent, tasks=tmp_path / "tasks.csv", fields={"question": "question"}).plan
    assert isinstance(from_file, RunPlan)
    assert [task.id for task in from_file.train_tasks] == ["tasks-1"]  # type: ignore[union-attr]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an agent and a class": ({"agent": agent, "env": World}, "an agent and env=World both"),
    "an agent and a command": ({"agent": agent, "command": "ls"}, "an agent and command='ls' both"),
    "a name that is taken": (
        {"agent": agent, "rewards": {"exact_match": polite}},
        "'exact_match' is a reward of areal-sdk: rename your function",
    ),
    "one name twice": ({"agent": agent, "rewards": [polite, polite]}, "two are called 'polite'"),
    "a lambda": ({"agent": agent, "rewards": lambda episode: 1.0}, "top level of a .py file"),
    "nobody": ({}, "which agent"),
}


@pytest.mark.parametrize(("arguments", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_given_together_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        planned(**arguments)
