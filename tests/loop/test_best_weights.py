"""`checkpoints/best` holds weights that were measured as they are, and the best of those."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from areal_sdk.loop.evaluation.best import BestWeights, Measured
from areal_sdk.loop.plan.models import find_model, whose_weights
from areal_sdk.rollout.evaluation import EvalReport, evaluate_tasks
from areal_sdk.telemetry.run_dir import read_measured
from areal_sdk.types import ErrorKind, Outcome
from tests.loop.runs import (
    SCRIPTED_ENGINE,
    finish,
    inspect,
    run_dir,
    start_command,
    start_training,
    train_and_keep_weights,
)
from tests.rollout.simulation import simulate, tasks
from tests.toolbox.scripted_episodes import Scripted


def export(checkpoints: Path, step: int) -> Path:
    path = checkpoints / f"candidate-{step:06d}"
    path.mkdir(parents=True)
    (path / "config.json").write_text(f"v{step}")
    return path


def measured(step: int, success: float, reward: float = 0.0, *, until: int = 0) -> Measured:
    return Measured(step, success, reward, from_version=step, to_version=until or step)


def weights_in(directory: Path) -> str:
    return (directory / "config.json").read_text()


def test_a_tie_in_success_is_broken_by_reward(tmp_path: Path) -> None:
    best = BestWeights(tmp_path)
    for step, reward in [(10, 0.20), (20, 0.90), (30, 0.89)]:
        best.offer(export(tmp_path, step), measured(step, 0.0, reward))
    assert weights_in(tmp_path / "best") == "v20"
    assert best.best is not None
    assert (best.best.step, best.best.reward, best.best.by) == (20, 0.90, "reward")
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_of_equal_weights_the_later_are_the_best(tmp_path: Path) -> None:
    """The later ones win against those before training too: nobody trains in order to keep these."""
    best = BestWeights(tmp_path)
    for step in (0, 12, 24):
        best.offer(export(tmp_path, step), measured(step, 0.9, 0.9))
    assert weights_in(tmp_path / "best") == "v24"
    assert best.best is not None
    assert best.best.by == "order"
    best.offer(export(tmp_path, 36), measured(36, 0.8, 0.8))
    assert best.best.by == "order", "it is still one of several that are equal"


def test_weights_that_changed_do_not_wait_for_an_equal_that_came_later(tmp_path: Path) -> None:
    best = BestWeights(tmp_path)
    best.offer(export(tmp_path, 12), measured(12, 0.9, until=14))
    assert best.waiting is not None
    best.offer(export(tmp_path, 24), measured(24, 0.9))
    assert weights_in(tmp_path / "best") == "v24"
    assert best.waiting is None


def test_success_counts_before_reward(tmp_path: Path) -> None:
    best = BestWeights(tmp_path)
    best.offer(export(tmp_path, 10), measured(10, 0.5, 0.9))
    best.offer(export(tmp_path, 20), measured(20, 0.7, 0.1))
    assert best.best is not None
    assert (best.best.step, best.best.by) == (20, "success")


def report_of(*outcomes: Outcome) -> EvalReport:
    """The report of an evaluation that played one task for each outcome."""
    scripted = Scripted({f"t{index}": [outcome] for index, outcome in enumerate(outcomes)})
    return simulate(evaluate_tasks(scripted, tasks(len(outcomes))))


def offer(best: BestWeights, tmp_path: Path, step: int, *outcomes: Outcome) -> None:
    found = Measured.of(report_of(*outcomes), step=step)
    assert found is not None
    exact = replace(found, from_version=step, to_version=step)
    best.offer(export(tmp_path, step), exact)


YES, NO = Outcome.scored(1.0), Outcome.scored(0.0)
FAILED = Outcome.failed(ErrorKind.AGENT, "JSONDecodeError: what the model wrote")


def test_an_episode_without_a_verdict_is_no_success_of_the_weights(tmp_path: Path) -> None:
    """Weights whose failures ended in an exception, and were left out, would win otherwise."""
    best = BestWeights(tmp_path)
    offer(best, tmp_path, 10, *[YES] * 9, NO)
    offer(best, tmp_path, 20, YES, *[FAILED] * 9)
    offer(best, tmp_path, 30, YES, *[Outcome.abstained("a limit ended it")] * 9)
    assert weights_in(tmp_path / "best") == "v10"
    assert best.best is not None
    assert (best.best.success, best.best.solved, best.best.by) == (0.9, 0.9, "success")


def test_a_graded_reward_of_a_few_is_not_better_than_that_of_all(tmp_path: Path) -> None:
    best = BestWeights(tmp_path)
    offer(best, tmp_path, 10, *[Outcome.scored(0.8)] * 10)
    offer(best, tmp_path, 20, Outcome.scored(0.9), *[FAILED] * 9)
    assert weights_in(tmp_path / "best") == "v10"
    offer(best, tmp_path, 30, *[Outcome.scored(0.85)] * 9, FAILED)
    assert weights_in(tmp_path / "best") == "v30", "one that is missing decides nothing"


def test_those_that_were_judged_replace_those_that_hardly_were(tmp_path: Path) -> None:
    best = BestWeights(tmp_path)
    offer(best, tmp_path, 10, Outcome.scored(0.9), *[FAILED] * 9)
    offer(best, tmp_path, 20, *[Outcome.scored(0.8)] * 10)
    assert weights_in(tmp_path / "best") == "v20"
    assert best.best is not None
    assert best.best.by == "verdicts"


def test_points_are_compared_as_points(tmp_path: Path) -> None:
    """A reward of exactly 1 is the success of rewards up to 1; of points it is a low score."""
    best = BestWeights(tmp_path)
    offer(best, tmp_path, 10, *[YES] * 3, *[NO] * 7)
    offer(best, tmp_path, 20, *[Outcome.scored(8.0)] * 10)
    assert weights_in(tmp_path / "best") == "v20"
    offer(best, tmp_path, 30, *[YES] * 10)
    assert weights_in(tmp_path / "best") == "v20"
    assert best.best is not None
    assert best.best.by == "reward"


def test_points_that_say_what_a_success_is_are_compared_by_success(tmp_path: Path) -> None:
    best = BestWeights(tmp_path)
    won, lost = Outcome.scored(10.0, success=True), Outcome.scored(30.0, success=False)
    offer(best, tmp_path, 10, won, won)
    offer(best, tmp_path, 20, lost, lost)
    assert weights_in(tmp_path / "best") == "v10"


def test_weights_that_changed_under_their_evaluation_wait_to_be_measured_again(
    tmp_path: Path,
) -> None:
    best = BestWeights(tmp_path)
    best.offer(export(tmp_path, 10), measured(10, 0.6))
    best.offer(export(tmp_path, 20), measured(20, 0.8, until=23))
    best.offer(export(tmp_path, 30), measured(30, 0.7, until=33))
    assert weights_in(tmp_path / "best") == "v10"
    assert best.waiting == measured(20, 0.8, until=23)
    assert weights_in(best.waiting_dir) == "v20"
    best.offer(best.waiting_dir, measured(20, 0.65))
    assert weights_in(tmp_path / "best") == "v20"
    assert best.waiting is None
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_an_evaluation_that_began_too_late_did_not_measure_the_exported_weights(
    tmp_path: Path,
) -> None:
    best = BestWeights(tmp_path)
    best.offer(export(tmp_path, 10), Measured(10, 0.6, 0.0, from_version=11, to_version=11))
    assert best.best is None
    assert best.waiting is not None


def test_what_waits_and_cannot_be_the_best_any_more_is_forgotten(tmp_path: Path) -> None:
    best = BestWeights(tmp_path)
    best.offer(export(tmp_path, 10), measured(10, 0.6, until=12))
    best.offer(export(tmp_path, 20), measured(20, 0.9))
    assert best.waiting is None
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_a_resumed_run_knows_what_best_and_waiting_weights_achieved(tmp_path: Path) -> None:
    best = BestWeights(tmp_path)
    best.offer(export(tmp_path, 30), measured(30, 0.8))
    best.offer(export(tmp_path, 40), measured(40, 0.9, until=42))
    export(tmp_path, 50)  # it was killed while these were measured
    resumed = BestWeights(tmp_path)
    assert (resumed.best, resumed.waiting) == (best.best, best.waiting)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "waiting"]


def test_best_weights_of_a_run_that_knew_no_reward_are_compared_by_success(tmp_path: Path) -> None:
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "evaluation.json").write_text('{"success": 0.5, "step": 10}')
    best = BestWeights(tmp_path)
    best.offer(export(tmp_path, 20), measured(20, 0.4, 0.9))
    assert best.best is not None
    assert best.best.step == 10
    best.offer(export(tmp_path, 30), measured(30, 0.5, 0.3))
    assert best.best.step == 30


def test_a_kill_between_the_renames_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    BestWeights(tmp_path).offer(export(tmp_path, 10), measured(10, 0.5))
    (tmp_path / "best").rename(tmp_path / ".best.old")
    export(tmp_path, 20)
    best = BestWeights(tmp_path)
    assert weights_in(tmp_path / "best") == "v10"
    assert best.best is not None
    assert best.best.success == 0.5
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_an_unfinished_run_without_best_weights_gives_those_that_wait(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    checkpoints = tmp_path / "checkpoints"
    BestWeights(checkpoints).offer(export(checkpoints, 10), measured(10, 0.5, until=12))
    found = find_model(str(tmp_path))
    assert found == checkpoints / "waiting"
    assert whose_weights(found) == (
        f"weights: checkpoints/waiting of {tmp_path}: step 10, success 0.500, reward 0.000, "
        "while they changed"
    )


def test_who_takes_the_weights_of_a_run_is_told_which(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("")
    checkpoints = tmp_path / "checkpoints"
    BestWeights(checkpoints).offer(export(checkpoints, 10), measured(10, 0.5, 0.7))
    assert whose_weights(find_model(str(tmp_path))) == (
        f"weights: checkpoints/best of {tmp_path}: step 10, success 0.500, reward 0.700"
    )
    assert whose_weights(tmp_path) == ""


def assert_same_weights(exported: Path, published: Path) -> None:
    one, other = load_file(exported / "model.safetensors"), load_file(published)
    assert one.keys() == other.keys()
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.slow
def test_with_graded_rewards_the_best_are_the_weights_with_the_highest_reward(
    tmp_path: Path,
) -> None:
    output = train_and_keep_weights(
        tmp_path,
        run__steps=6,
        eval__every=2,
        eval__tasks=8,
        eval__temperature=1.0,
        eval__after=True,
    )
    run = run_dir(tmp_path)
    rows = [
        row
        for row in run.read_metrics(kind="eval")
        if row["from_version"] == row["to_version"] == row["step"]
    ]
    assert {row["success"] for row in rows} == {0.0}, "its rewards are graded"
    highest = max(rows, key=lambda row: row["reward"])
    best = read_measured(run.checkpoints / "best")
    assert best is not None
    assert (best["step"], best["reward"]) == (highest["step"], highest["reward"])
    published = tmp_path / "weights" / f"v{best['step']}.safetensors"
    assert_same_weights(run.checkpoints / "best", published)
    line = f"best weights: step {best['step']}"
    assert line in output
    assert line in inspect(str(run.path))


CHANGING_AGENT = """
import asyncio
import os
import shutil
from pathlib import Path
from areal_sdk import Agent, Task, hookimpl

REWARDS = {{"step-2-eval": 0.9, "after-eval": 0.5, "step-2-again-eval": 0.7}}

class Changing(Agent):
    step = 0

    async def run(self, task, context):
        message = [{{"role": "user", "content": "a"}}]
        turn = await context.generate(message, max_new_tokens=8)
        evaluation = context.episode_id.partition(".")[0]
        if context.split != "eval":
            return sum(token < 128 for token in turn.output_tokens) / 8
        if evaluation == "step-2-eval":
            while Changing.step < 4:
                await asyncio.sleep(0.01)
            await context.generate(message, max_new_tokens=8)
        return REWARDS.get(evaluation, 0.4)

@hookimpl
def on_step(step):
    Changing.step = step

@hookimpl
def on_weights(update):
    if update.path is not None:
        shutil.copy(update.path, Path("{weights}") / f"v{{update.version}}.safetensors")

def tasks(split):
    for index in range(64):
        yield Task(f"{{split}}-{{index}}")
"""


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run whose weights change while step 2 is evaluated, which looks best."""
    directory = tmp_path_factory.mktemp("run")
    (directory / "weights").mkdir()
    agent = directory / "changing.py"
    agent.write_text(CHANGING_AGENT.format(weights=directory / "weights"))
    settings: dict[str, Any] = {
        "run__steps": 5,
        "eval__every": 2,
        "eval__tasks": 2,
        "eval__after": True,
    }
    return directory, finish(start_training(directory, *SCRIPTED_ENGINE, agent=agent, **settings))


def test_what_looked_best_while_weights_changed_is_measured_again_as_it_was_kept(
    changing: tuple[Path, str],
) -> None:
    directory, output = changing
    rows = {row["name"]: row for row in run_dir(directory).read_metrics(kind="eval")}
    first, again = rows["step-2"], rows["step-2-again"]
    assert first["from_version"] < first["to_version"]
    assert (again["from_version"], again["to_version"], again["reward"]) == (2, 2, 0.7)
    span = f"v{first['from_version']}-v{first['to_version']}"
    assert f"step 2 looks best, but its weights changed while they were measured ({span})" in output


def test_the_best_weights_are_those_that_were_measured(changing: tuple[Path, str]) -> None:
    directory, output = changing
    run = run_dir(directory)
    best = read_measured(run.checkpoints / "best")
    assert best is not None
    assert (best["step"], best["reward"], best["by"]) == (2, 0.7, "reward")
    assert_same_weights(run.checkpoints / "best", directory / "weights" / "v2.safetensors")
    assert "best weights: step 2, by reward: success 0.000, reward 0.700" in output
    assert "best weights: step 2" in inspect(str(run.path))
    assert sorted(path.name for path in run.checkpoints.iterdir()) == [
        *("best", "final", "step-000005")
    ]


def otherwise(step: int, success: float, *, tasks: int) -> Measured:
    return replace(measured(step, success), measure={"split": "eval", "num_tasks": tasks})


def test_weights_that_were_measured_otherwise_begin_a_new_comparison(tmp_path: Path) -> None:
    """A success of 0.9 on 4 tasks says nothing about one of 0.6 on 100."""
    BestWeights(tmp_path).offer(export(tmp_path, 10), otherwise(10, 0.9, tasks=4))
    best = BestWeights(tmp_path)
    best.offer(export(tmp_path, 20), otherwise(20, 0.6, tasks=100))
    assert weights_in(tmp_path / "best") == "v20"
    assert best.best is not None
    assert best.best.by == "", "nothing was compared"
    best.offer(export(tmp_path, 30), otherwise(30, 0.5, tasks=100))
    assert weights_in(tmp_path / "best") == "v20"
    stored = read_measured(tmp_path / "best")
    assert stored is not None
    assert stored["measure"] == {"split": "eval", "num_tasks": 100}


def test_weights_that_wait_are_measured_again_whatever_measured_them(tmp_path: Path) -> None:
    waiting = replace(otherwise(10, 0.9, tasks=4), to_version=12)
    BestWeights(tmp_path).offer(export(tmp_path, 10), waiting)
    best = BestWeights(tmp_path)
    best.offer(export(tmp_path, 20), otherwise(20, 0.95, tasks=100))
    assert best.waiting == waiting
    best.offer(best.waiting_dir, otherwise(10, 0.97, tasks=100))
    assert weights_in(tmp_path / "best") == "v10"


WORSE_AGENT = """
from areal_sdk import Agent, Task

class Worse(Agent):
    async def run(self, task, context):
        turn = await context.generate([{"role": "user", "content": "a"}], max_new_tokens=4)
        if context.split == "train":
            return sum(token < 128 for token in turn.output_tokens) / 4
        return 1.0 - max(turn.versions) / 10

def tasks(split):
    for index in range(64):
        yield Task(f"{split}-{index}")
"""


@pytest.mark.slow
def test_where_every_step_is_worse_the_best_weights_are_those_before_training(
    tmp_path: Path,
) -> None:
    agent = tmp_path / "worse.py"
    agent.write_text(WORSE_AGENT)
    settings: dict[str, Any] = {"eval__before": True, "eval__every": 1, "eval__tasks": 2}
    output = finish(start_training(tmp_path, agent=agent, run__steps=2, **settings))
    run = run_dir(tmp_path)
    best = read_measured(run.checkpoints / "best")
    assert best is not None
    assert (best["step"], best["reward"]) == (0, 1.0)
    assert "best weights: those before training" in output
    assert f"the last weights: areal-sdk export {run.path} --last --to DIR" in output
    assert whose_weights(find_model(str(run.path))).startswith(
        f"weights: checkpoints/best of {run.path}: before training, success"
    )
    assert best["measure"]["num_tasks"] == 2
    resume = ("--steps", "3", "--set", "eval.tasks=3")
    output = finish(start_command("train", "--resume", str(run.path), *resume))
    assert "checkpoints/best was measured otherwise (num_tasks was 2, now 3" in output
    best = read_measured(run.checkpoints / "best")
    assert best is not None
    assert (best["step"], best["measure"]["num_tasks"]) == (3, 3)
