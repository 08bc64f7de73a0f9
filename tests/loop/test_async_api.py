"""`areal_sdk.aio` trains and evaluates in the event loop that runs already."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import areal_sdk
from areal_sdk import EpisodeContext, Task
from areal_sdk.telemetry import RunDir
from tests.loop.runs import DEADLINE_S, PLUGIN

TASKS = [Task(f"task-{index}") for index in range(16)]
SETTINGS: dict[str, Any] = {
    "rollout": {"batch": 8, "group_size": 4, "max_inflight": 8},
    "eval": {"before": False, "after": False},
}
SCRIPTED: dict[str, Any] = {
    "plugins": [PLUGIN],
    "engine": {"name": "scripted"},
    "trainer": {"name": "scripted"},
}
REAL: dict[str, Any] = {"engine": {"dtype": "float32"}, "trainer": {"precision": "float32"}}


async def agent(task: Task, context: EpisodeContext) -> float:
    turn = await context.generate([{"role": "user", "content": "a"}], max_new_tokens=4)
    return sum(token < 128 for token in turn.output_tokens) / 4


async def test_an_evaluation_is_awaited_in_the_running_loop() -> None:
    loops = set()

    async def notes(task: Task, context: EpisodeContext) -> float:
        loops.add(asyncio.get_running_loop())
        return 1.0

    report = await areal_sdk.aio.evaluate(
        notes, tasks=TASKS, base_url="http://127.0.0.1:9/v1", quiet=True
    )
    assert report.num_scored == len(TASKS)
    assert loops == {asyncio.get_running_loop()}


async def test_a_wrong_argument_is_an_error_and_leaves_no_coroutine_behind() -> None:
    with pytest.raises(areal_sdk.ConfigError, match="rollout"):
        await areal_sdk.aio.evaluate(agent, tasks=TASKS, rollout={"batches": 1})
    with pytest.raises(areal_sdk.ConfigError, match="no tasks"):
        await areal_sdk.aio.evaluate(agent, tasks=[], base_url="http://127.0.0.1:9/v1", quiet=True)


@pytest.mark.parametrize("parts", [SCRIPTED, pytest.param(REAL, marks=pytest.mark.slow)])
async def test_a_cancelled_training_run_has_saved_what_it_learnt_and_goes_on(
    tmp_path: Path, parts: dict[str, Any]
) -> None:
    run: dict[str, Any] = {"dir": tmp_path, "name": "run", "steps": 10_000}
    training = asyncio.create_task(
        areal_sdk.aio.train(
            agent, model="tiny", tasks=TASKS, quiet=True, run=run, **SETTINGS, **parts
        )
    )
    run_dir = RunDir(tmp_path / "run")
    async with asyncio.timeout(DEADLINE_S):
        while not (run_dir.metrics.is_file() and run_dir.read_steps()):
            assert not training.done(), training.result()
            await asyncio.sleep(0.02)
    training.cancel()
    with pytest.raises(asyncio.CancelledError):
        await training
    steps = len(run_dir.read_steps())
    summary = await areal_sdk.aio.train(
        agent, resume=run_dir.path, tasks=TASKS, quiet=True, run={"steps": steps + 1}
    )
    assert (summary.steps, summary.ended) == (steps + 1, "steps")
    repeated = [row["step"] for row in run_dir.read_metrics(kind="step")]
    assert repeated == list(range(1, steps + 2)), "no step was taken twice"
