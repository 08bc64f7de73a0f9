"""Ctrl-C and SIGTERM while the trainer is at work: what it is computing is kept."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.loop.runs import (
    AGENT,
    DEADLINE_S,
    SCRIPTED,
    children_of,
    finish,
    press_ctrl_c_again,
    resume_training,
    run_dir,
    start_command,
    start_training,
    told,
    wait_for_steps,
)

HELD_STEP = """

def held():
    import dataclasses
    import time
    from pathlib import Path
    from areal_sdk.algorithms.presets import grpo

    algorithm = grpo()

    def advantages(groups, baselines):
        while Path("{directory}/hold-step").exists():
            Path("{directory}/in-step").touch()
            time.sleep(0.01)
        return algorithm.advantages(groups, baselines)

    return dataclasses.replace(algorithm, advantages=advantages)


@areal_sdk.hookimpl
def register_algorithms(register):
    register("held", held)
"""

UGLY = ("Traceback", "never retrieved", "Exception ignored", "never awaited", "internal error")

Process = subprocess.Popen[str]


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts a run of some parts and holds it in the middle of a step until `hold-step` is removed."""
    agent = tmp_path / "agent.py"
    agent.write_text(AGENT.read_text() + HELD_STEP.format(directory=tmp_path))
    started: list[Process] = []

    def start(*parts: str, **settings: Any) -> Process:
        algorithm = {} if parts else {"algorithm__name": "held"}  # a scripted trainer waits itself
        values = {"run__steps": 10_000, **algorithm, **settings}
        process = start_training(tmp_path, *parts, agent=agent, **values)
        started.append(process)
        wait_for_steps(process, tmp_path, 2)
        (tmp_path / "hold-step").touch()
        wait_until(process, (tmp_path / "in-step").exists)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def wait_until(process: Process, happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not happened():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def steps_in(directory: Path) -> list[int]:
    return [row["step"] for row in run_dir(directory).read_metrics(kind="step")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_step_that_is_being_computed_is_finished_and_saved(
    held: Callable[..., Process], tmp_path: Path, parts: tuple[str, ...], number: signal.Signals
) -> None:
    process = held(*parts)
    for _ in range(2):  # as `timeout` does, to its child and to the group: it is one signal
        process.send_signal(number)
    assert process.stdout is not None
    said = told(process.stdout, "(.*waits for step.*)")
    assert "run.stop_grace_s" in said
    assert "Ctrl-C again" in said
    (tmp_path / "hold-step").unlink()
    output = finish(process, code=1)
    (step,) = map(int, re.findall("waits for step ([0-9]+)", said))
    assert f"step {step} is saved: no step is lost" in output
    assert not any(word in output for word in UGLY), output
    books = run_dir(tmp_path).read_ledger()
    assert books is not None
    assert books["running"] == 0
    assert books["trained"] == step * 16
    finish(resume_training(tmp_path, "--steps", str(step + 1)))
    assert steps_in(tmp_path) == list(range(1, step + 2)), "nothing is done twice or left out"


@pytest.mark.long
def test_a_rank_that_dies_in_a_step_is_not_taken_for_ctrl_c(
    held: Callable[..., Process], tmp_path: Path
) -> None:
    process = held(trainer__ranks=2)
    (trainer,) = children_of(process.pid, "trainer-0")
    os.kill(trainer, signal.SIGKILL)
    output = finish(process, code=1)
    assert re.search(r"trainer-0 .*was killed by SIGKILL", output), output
    assert re.search(r"a process of the trainer died: step \d+ is lost", output), output
    assert "Ctrl-C" not in output
    assert not any(word in output for word in UGLY), output


def test_an_engine_that_dies_for_good_in_a_step_is_not_taken_for_ctrl_c(
    held: Callable[..., Process], tmp_path: Path
) -> None:
    process = held(*SCRIPTED)
    (tmp_path / "lose-engine").touch()
    assert process.stdout is not None
    said = told(process.stdout, "(.*engine was lost 4 times.*)")
    assert re.search(r"engine\.log; step \d+ is finished and saved first \(up to", said), said
    (tmp_path / "hold-step").unlink()
    (tmp_path / "lose-engine").unlink()
    output = finish(process, code=1)
    assert "Ctrl-C again" not in said + output
    assert "engine was lost 4 times" in output
    assert not any(word in output for word in UGLY), output
    (step,) = map(int, re.findall("step ([0-9]+) is finished", said))
    finish(resume_training(tmp_path, "--steps", str(step + 1)))
    assert steps_in(tmp_path) == list(range(1, step + 2)), "nothing is done twice or left out"


def test_a_fine_tuning_step_that_was_finished_and_saved_has_its_metrics(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    (tmp_path / "hold-step").touch()
    process = start_command(
        *("sft", str(tmp_path / "rows.jsonl"), "--model", "tiny", "--steps", "2"),
        *("--set", f"run.dir={tmp_path}", "--set", "run.name=run", *SCRIPTED),
    )
    wait_until(process, (tmp_path / "in-step").exists)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    told(process.stdout, "(waits for step 1)")
    (tmp_path / "hold-step").unlink()
    assert "step 1 is saved" in finish(process, code=1)
    assert steps_in(tmp_path) == [1]


def test_a_second_ctrl_c_does_not_wait_for_the_step(
    held: Callable[..., Process], tmp_path: Path, parts: tuple[str, ...]
) -> None:
    process = held(*parts)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    told(process.stdout, "(waits for step)")
    press_ctrl_c_again(process)
    output = finish(process, code=1)
    assert "interrupted" in output
    assert not any(word in output for word in UGLY), output
    assert not list(run_dir(tmp_path).checkpoints.glob("step-*"))


def test_a_step_that_outlives_the_grace_is_given_up_and_the_setting_named(
    held: Callable[..., Process], parts: tuple[str, ...]
) -> None:
    process = held(*parts, run__stop_grace_s=0.5)
    process.send_signal(signal.SIGTERM)
    output = finish(process, code=1)
    assert "run.stop_grace_s = 0.5" in output
    assert re.search("steps 1 to [0-9]+ could not be saved: a resumed run takes them again", output)
    assert not any(word in output for word in UGLY), output


@pytest.mark.long
def test_a_signal_to_every_process_of_the_run_still_saves_the_step(
    held: Callable[..., Process], tmp_path: Path
) -> None:
    process = held()
    (trainer,) = children_of(process.pid, "trainer-0")
    (engine,) = children_of(process.pid, "engine")
    for pid in (trainer, engine, process.pid):  # as systemd and batch systems do
        os.kill(pid, signal.SIGTERM)
    assert process.stdout is not None
    told(process.stdout, "(waits for step)")
    (tmp_path / "hold-step").unlink()
    assert re.search("step [0-9]+ is saved: no step is lost", finish(process, code=1))


def test_a_save_takes_the_time_it_needs(tmp_path: Path) -> None:
    process = start_training(tmp_path, *SCRIPTED, run__steps=10_000)
    wait_for_steps(process, tmp_path, 2)
    (tmp_path / "hold-save").touch()  # not before: the weights of the beginning are kept
    process.send_signal(signal.SIGTERM)
    wait_until(process, (tmp_path / "in-save").exists)
    assert process.stdout is not None
    told(process.stdout, "stopping: (writes the checkpoint)")
    (tmp_path / "hold-save").unlink()
    output = finish(process, code=1)
    assert "is saved: no step is lost" in output
    assert not any(word in output for word in UGLY), output


@pytest.mark.slow
def test_what_a_stopped_trainer_is_asked_takes_the_time_it_needs(tmp_path: Path) -> None:
    process = start_training(tmp_path, run__steps=10_000)
    wait_for_steps(process, tmp_path, 2)
    (trainer,) = children_of(process.pid, "trainer-0")
    os.kill(trainer, signal.SIGSTOP)  # whatever it is asked from now on takes long
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    told(process.stdout, "stopping: (writes the checkpoint|waits for step)")
    os.kill(trainer, signal.SIGCONT)
    output = finish(process, code=1)
    assert "is saved: no step is lost" in output
    assert not any(word in output for word in UGLY), output
