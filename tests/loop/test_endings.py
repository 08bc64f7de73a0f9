"""Runs end in order when something else than the last step ends them."""

import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.loop.learning.endings import LatestLessons
from areal_sdk.telemetry import RunDir
from tests.loop.runs import (
    DEADLINE_S,
    SCRIPTED_ENGINE,
    SCRIPTED_TRAINER,
    children_of,
    finish,
    resume_training,
    run_dir,
    start_command,
    start_training,
    wait_for_steps,
)
from tests.toolbox.run_records import curve

BUSY = 4
"""Factor by which the machine that runs the tests may be slower than a quiet one."""


def test_ctrl_c_stops_within_5_seconds_and_says_how_to_resume(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    process = start_training(tmp_path, *parts, run__steps=10_000, run__checkpoint_every=2)
    wait_for_steps(process, tmp_path, 3)
    process.send_signal(signal.SIGINT)
    output = finish(process, code=1, deadline_s=BUSY * 5.0)
    assert f"areal-sdk train --resume {tmp_path / 'run'}" in output
    assert run_dir(tmp_path).read_ledger() is not None
    go_on = resume_training(tmp_path)
    steps = len(run_dir(tmp_path).read_steps())
    wait_for_steps(go_on, tmp_path, steps + 2)
    go_on.send_signal(signal.SIGINT)
    finish(go_on, code=1)


def test_a_killed_trainer_ends_the_run_at_once_and_names_its_log(tmp_path: Path) -> None:
    process = start_training(tmp_path, *SCRIPTED_ENGINE, run__steps=10_000)
    wait_for_steps(process, tmp_path, 2)
    (trainer,) = children_of(process.pid, "trainer-0")
    os.kill(trainer, signal.SIGKILL)
    output = finish(process, code=1, deadline_s=BUSY * 10.0)
    assert re.search(r"trainer-0 .*was killed by SIGKILL", output)
    assert "trainer-0.log" in output


@pytest.mark.long
def test_a_run_that_may_restart_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "run__deterministic": True,
        "run__steps": 40,
        "run__checkpoint_every": 1,
    }
    finish(start_training(tmp_path / "whole", *SCRIPTED_ENGINE, **settings))
    settings |= {"run__restarts": 1, "run__mirror": tmp_path / "mirror"}
    process = start_training(tmp_path / "lost", *SCRIPTED_ENGINE, **settings)
    wait_for_steps(process, tmp_path / "lost", 3)
    (trainer,) = children_of(process.pid, "trainer-0")
    os.kill(trainer, signal.SIGKILL)
    output = finish(process)
    assert re.search(r"trainer-0 .*was killed by SIGKILL.*checkpoint \(restart 1 of 1\)", output)
    assert curve(tmp_path / "lost") == curve(tmp_path / "whole")
    mirror = RunDir.open(tmp_path / "mirror")
    assert mirror.read_metrics() == run_dir(tmp_path / "lost").read_metrics()


@pytest.mark.long
def test_a_run_that_may_restart_and_has_saved_nothing_begins_again(tmp_path: Path) -> None:
    secret: dict[str, Any] = {"engine__http__api_key": "sk-not-in-config.toml"}
    process = start_training(tmp_path, *SCRIPTED_ENGINE, run__steps=12, run__restarts=1, **secret)
    wait_for_steps(process, tmp_path, 2)
    (trainer,) = children_of(process.pid, "trainer-0")
    os.kill(trainer, signal.SIGKILL)
    output = finish(process)
    assert re.search(
        r"trainer-0 .*was killed by SIGKILL.*; beginning again \(restart 1 of 1\)", output
    )
    rows = run_dir(tmp_path).read_metrics(kind="step")
    assert [row["step"] for row in rows][-12:] == list(range(1, 13))


@pytest.mark.slow
def test_a_run_that_may_restart_outlives_an_engine_that_dies_while_it_starts(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {"run__steps": 6, "run__checkpoint_every": 1, "run__restarts": 1}
    process = start_training(tmp_path, *SCRIPTED_TRAINER, **settings)
    wait_for_steps(process, tmp_path, 2)
    process.kill()
    process.communicate()
    process = resume_training(tmp_path)
    deadline = time.monotonic() + DEADLINE_S
    while not (engines := children_of(process.pid, "engine")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(engines[0], signal.SIGKILL)
    output = finish(process)
    assert re.search(r"engine .*was killed by SIGKILL.*checkpoint \(restart 1 of 1\)", output)


SLOW_AGENT = """
import asyncio
from areal_sdk import Agent, Task, hookimpl

class Slow(Agent):
    async def run(self, task, context):
        print("playing", flush=True)
        await asyncio.sleep(3600)

def tasks(split):
    for index in range(4):
        yield Task(f"{split}-{index}")

@hookimpl
def on_run_end(run_dir, summary):
    print("observed the end", flush=True)
"""


@pytest.mark.slow
def test_a_trainer_that_dies_while_nothing_is_asked_of_it_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "slow.py"
    path.write_text(SLOW_AGENT)
    process = start_command(
        *("train", str(path), "--model", "tiny", "--set", "eval.before=false"),
        *("--set", f"run.dir={tmp_path}", "--set", "run.name=run"),
    )
    assert process.stdout is not None
    next(line for line in process.stdout if "playing" in line)
    (trainer,) = children_of(process.pid, "trainer-0")
    os.kill(trainer, signal.SIGKILL)
    output = finish(process, code=1, deadline_s=BUSY * 10.0)
    assert re.search(r"trainer-0 .*was killed by SIGKILL; log: .*trainer-0.log", output)
    assert "observed the end" in output


def test_no_child_outlives_a_killed_main_process(tmp_path: Path) -> None:
    process = start_training(tmp_path, run__steps=10_000)
    wait_for_steps(process, tmp_path, 1)
    children = children_of(process.pid, "engine") + children_of(process.pid, "trainer-0")
    assert len(children) == 2
    process.send_signal(signal.SIGKILL)
    process.communicate()
    deadline = time.monotonic() + DEADLINE_S
    while any(Path(f"/proc/{pid}/exe").exists() for pid in children):
        assert time.monotonic() < deadline, "a child is still there"
        time.sleep(0.05)


@pytest.mark.slow
def test_max_minutes_end_a_run_that_waits_for_its_episodes(tmp_path: Path) -> None:
    path = tmp_path / "slow.py"
    path.write_text(SLOW_AGENT)
    output = finish(
        start_command(
            *("train", str(path), "--model", "tiny", "--set", "run.max_minutes=0.02"),
            *("--set", "eval.before=false", "--set", "eval.after=false"),
            *("--set", f"run.dir={tmp_path}", "--set", "run.name=run"),
        ),
        deadline_s=BUSY * 20.0,
    )
    assert "0 steps in 0:01 of training" in output
    assert "ended: max_minutes" in output
    books = run_dir(tmp_path).read_ledger()
    assert books is not None
    assert books["dropped"] == {"cancelled": books["started"]}


@pytest.mark.slow
def test_max_minutes_end_a_server_that_nobody_calls(tmp_path: Path) -> None:
    output = finish(
        start_command(
            *("serve", "--learn", "--model", "tiny", "--port", "0", "--engine", "local"),
            *("--set", "run.max_minutes=0.02", "--set", f"run.dir={tmp_path}"),
        ),
        deadline_s=BUSY * 20.0,
    )
    assert "ended: max_minutes" in output


@pytest.mark.parametrize(
    ("success", "differing", "word", "told"),
    [
        (1.0, 0, "solved", "100.0% of the episodes of the last 3 batches succeed"),
        (0.996, 3, "solved", "take harder tasks, or raise run.max_empty_batches"),
        (0.0, 0, "hopeless", "no attempt succeeds: show an example in the prompt"),
        (0.6, 0, "stuck", "inspect runs/a --worst 5"),
        (0.98, 3, None, ""),  # some tasks are left
        (1.0, 60, None, ""),  # all succeed, and some earn more than others
    ],
)
def test_a_run_ends_where_its_latest_batches_have_little_to_teach(
    success: float, differing: int, word: str | None, told: str
) -> None:
    lessons = LatestLessons(3)
    for _ in range(3):
        assert lessons.ending("runs/a") is None
        lessons.add(*step(success, differing=differing))
    ended = lessons.ending("runs/a")
    assert (ended is None) == (word is None)
    assert ended is None or (ended[0] == word and told in ended[1])


def test_one_batch_with_a_gradient_keeps_a_run_alive_until_it_is_forgotten() -> None:
    lessons = LatestLessons(3)
    for differing in (8, 0, 0):
        lessons.add(*step(0.5, differing=differing))
    assert lessons.ending("runs/a") is None
    lessons.add(*step(0.5, differing=0))
    assert lessons.ending("runs/a") is not None


@pytest.mark.parametrize(
    ("without", "word"), [(0.005, "solved"), (0.02, "stuck"), (0.86, "stuck"), (0.995, "hopeless")]
)
def test_an_episode_without_a_reward_is_no_success(without: float, word: str) -> None:
    lessons = LatestLessons(3)
    for _ in range(3):
        lessons.add(*step(1.0, differing=0, without_reward=without, unjudged_share=without))
    ended = lessons.ending("runs/a")
    assert ended is not None
    assert ended[0] == word
    if word != "solved":
        assert f"{without:.0%} of the episodes got no reward and count as failures" in ended[1]
        assert "raise rollout.max_turns" in ended[1]


def step(success: float, *, differing: int, **more: float) -> tuple[dict[str, float], ...]:
    """The metrics of a batch of 64 groups, and of its step."""
    batch = {"groups": 64.0, "episodes": 512.0, "uniform_groups": 64.0 - differing}
    return {**batch, "success": success, **more}, {"num_updates": float(differing > 0)}
