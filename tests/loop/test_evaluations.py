"""Evaluations during training: they keep the best weights."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.loop.runs import finish, inspect, run_dir, start_training


def test_evaluations_run_beside_the_rollouts_keep_the_best(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    settings: dict[str, Any] = {
        "run__steps": 5,
        "eval__every": 2,
        "eval__tasks": 4,
        "eval__after": True,
    }
    finish(start_training(tmp_path, *parts, **settings))
    run = run_dir(tmp_path)
    rows = run.read_metrics(kind="eval")
    assert rows[0]["name"] == "step-2"
    assert "after" in [row["name"] for row in rows]
    exact = [row for row in rows if row["from_version"] == row["to_version"] == row["step"]]
    first_best = max(exact, key=lambda row: (row["success"], row["reward"], row["step"]))
    best = orjson.loads((run.checkpoints / "best" / "evaluation.json").read_bytes())
    assert [best[key] for key in ("step", "success", "reward")] == [
        first_best[key] for key in ("step", "success", "reward")
    ]
    assert not list(run.checkpoints.glob("candidate-*"))


def test_what_an_evaluation_of_the_last_step_measured_is_not_played_again(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    settings: dict[str, Any] = {
        "run__steps": 2,
        "eval__every": 2,
        "eval__tasks": 4,
        "eval__after": True,
    }
    output = finish(start_training(tmp_path, *parts, **settings))
    run = run_dir(tmp_path)
    last, after = run.read_metrics(kind="eval")
    assert (last["name"], after["name"]) == ("step-2", "after")
    assert {**after, "name": "step-2", "time": last["time"]} == last
    assert sum(episode.split == "eval" for episode in run.list_episodes()) == 4
    assert "after: step-2 measured the last weights, and is not repeated" in output
    assert output.count(": eval: success") == 1, "nor are its numbers"


def test_an_evaluation_that_is_due_while_one_runs_comes_next(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    settings: dict[str, Any] = {
        "run__steps": 6,
        "eval__every": 1,
        "eval__tasks": 32,
        "eval__samples": 4,
    }
    output = finish(start_training(tmp_path, *parts, **settings, rollout__batch=8))
    assert "begins when the one that still runs has ended" in output
    rows = run_dir(tmp_path).read_metrics(kind="eval")
    assert len(rows) >= 2, "the one that was due was left out"
    assert any(row["from_version"] < row["to_version"] for row in rows)
    spans = {f"v{row['from_version']}-v{row['to_version']}" for row in rows}
    shown = inspect(str(tmp_path / "run"))
    assert any(span in output and span in shown for span in spans)


WATCHING_AGENT = """
import asyncio
from pathlib import Path
from typing import Any
from areal_sdk import Agent, Task, hookimpl

LAST = Path("{checkpoint}")

class Watching(Agent):
    playing, is_over = 0, False

    async def run(self, task, context):
        if context.split == "eval":
            for _ in range(200):  # episodes that nobody trains are cancelled meanwhile
                if Watching.playing or not LAST.exists():
                    await asyncio.sleep(0.05)
            print(f"beside {{Watching.playing}} episodes of training")
            print(f"saved as inode {{LAST.stat().st_ino}}")
            return 1.0
        Watching.playing += 1
        try:
            turn = await context.generate([{{"role": "user", "content": "a"}}], max_new_tokens=8)
            if Watching.is_over:
                await asyncio.sleep(3600)
            return sum(token < 128 for token in turn.output_tokens) / 8
        finally:
            Watching.playing -= 1

@hookimpl
def on_step(step):
    Watching.is_over = step == 2

def tasks(split):
    for index in range(64):
        yield Task(f"{{split}}-{{index}}")
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, parts: tuple[str, ...]) -> tuple[Path, str]:
    """The last checkpoint of a run, and what its agent saw in the last evaluation."""
    directory = tmp_path_factory.mktemp("run")
    checkpoint = directory / "run" / "checkpoints" / "step-000002"
    agent = directory / "watching.py"
    agent.write_text(WATCHING_AGENT.format(checkpoint=checkpoint))
    process = start_training(
        directory,
        *parts,
        agent=agent,
        run__steps=2,
        run__checkpoint_every=1,
        eval__every=2,
        eval__tasks=2,
    )
    return checkpoint, finish(process)


def test_the_last_evaluation_has_the_engine_to_itself(watched: tuple[Path, str]) -> None:
    _, output = watched
    assert output.count("beside 0 episodes of training") == 2


def test_the_last_step_is_saved_once(watched: tuple[Path, str]) -> None:
    checkpoint, output = watched
    assert f"saved as inode {checkpoint.stat().st_ino}\n" in output, "it was written again"
