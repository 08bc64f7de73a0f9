"""`why` says how a run ended, and what its parts did before, whatever ended it: real processes, really killed."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from areal_sdk.records.diagnosis.why import Diagnosis, why
from areal_sdk.telemetry.live.flight import read_flight
from tests.loop.runs import (
    DEADLINE_S,
    SCRIPTED,
    SCRIPTED_ENGINE,
    children_of,
    finish,
    run_dir,
    start_training,
    wait_for_steps,
)

FAILING = Path(__file__).with_name("failing.py")


def start_failing(directory: Path, way: str, *arguments: str) -> "subprocess.Popen[str]":
    env = {"AREAL_TEST_FAILURE": way}
    return start_training(
        directory, *SCRIPTED, *arguments, agent=FAILING, env=env, run__steps=10_000
    )


def killed(process: "subprocess.Popen[str]", directory: Path) -> Diagnosis:
    """The answer of `why` after `kill -9` of the main process."""
    process.kill()
    process.communicate()
    found = why(run_dir(directory))
    assert found.failed.startswith("kill -9, a machine without memory, or one that went down")
    return found


def until_told(process: "subprocess.Popen[str]", directory: Path, words: str) -> None:
    """Return once `why` says `words` of the run, which goes on."""
    wait_for_steps(process, directory, 1)
    deadline = time.monotonic() + DEADLINE_S
    while not any(words in line for line in why(run_dir(directory)).last):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_a_killed_run_says_that_it_was_killed(tmp_path: Path) -> None:
    process = start_training(tmp_path, *SCRIPTED, run__steps=10_000)
    wait_for_steps(process, tmp_path, 3)
    assert why(run_dir(tmp_path)).last == (), "nothing is stuck"
    killed(process, tmp_path)


def test_a_run_that_a_signal_stopped_says_so_and_a_whole_one_says_nothing(tmp_path: Path) -> None:
    process = start_training(tmp_path, *SCRIPTED, run__steps=10_000)
    wait_for_steps(process, tmp_path, 2)
    process.terminate()
    finish(process, code=1)
    assert why(run_dir(tmp_path)).failed == "Ctrl-C or SIGTERM"
    (tmp_path / "whole").mkdir()
    finish(start_training(tmp_path / "whole", *SCRIPTED, run__steps=2))
    found = why(run_dir(tmp_path / "whole"))
    assert (found.failed, found.last) == ("", ())


@pytest.mark.parametrize(
    ("way", "arguments", "fault"),
    [
        ("raises", (), "agent errors"),
        ("reward", ("--plugin", str(FAILING), "--reward", "fails"), "failing reward"),
    ],
)
def test_the_last_lines_of_a_failed_run_name_the_fault_that_ended_it(
    tmp_path: Path, way: str, arguments: tuple[str, ...], fault: str
) -> None:
    output = finish(start_failing(tmp_path, way, *arguments), code=1)
    last = [line.partition(":")[0] for line in output.splitlines()[-4:]]
    assert last == ["error", "go on with", "likely", "look for faults"], output
    assert f"likely: {fault}: " in output
    found = why(run_dir(tmp_path))
    assert found.failed.startswith("RolloutError: 64 episodes in a row gave no group")
    assert found.findings[0].fault == fault, "others, of a random model, were there before"


@pytest.mark.long
def test_the_death_of_a_trainer_is_the_reason(tmp_path: Path) -> None:
    """17 s."""
    process = start_training(tmp_path, *SCRIPTED_ENGINE, run__steps=10_000)
    wait_for_steps(process, tmp_path, 2)
    (trainer,) = children_of(process.pid, "trainer-0")
    os.kill(trainer, signal.SIGKILL)
    output = finish(process, code=1)
    likely = [line for line in output.splitlines() if line.startswith("likely: ")]
    gone = "likely: the process trainer-0 was gone at "  # the recorder may have looked before the run ended
    assert all(line.startswith(gone) for line in likely), "no fault of the policy has ended it"
    found = why(run_dir(tmp_path))
    assert found.failed.startswith(f"ChildDiedError: trainer-0 (pid {trainer}) was killed by")


@pytest.mark.long
def test_an_agent_that_hangs_is_named(tmp_path: Path) -> None:
    """25 s: a part is stuck after 20 s."""
    process = start_failing(tmp_path, "hangs")
    until_told(process, tmp_path, "agents hang: ")
    last = killed(process, tmp_path).last
    assert "running episodes asked the model or ended" in last[0]
    assert "the buffer was empty for" in last[1]
    assert "of wait for rollouts: the 16 episodes of step " in last[1]


@pytest.mark.long
def test_an_agent_that_blocks_the_event_loop_is_named(tmp_path: Path) -> None:
    """45 s: the second reminder of the watchdog comes after 20 s or more."""
    process = start_failing(tmp_path, "blocks")
    until_told(process, tmp_path, "stood still")
    while (rows := read_flight(tmp_path / "run"))[-1]["time"] - rows[0]["time"] <= 22.0:
        time.sleep(0.5)  # until the second reminder of the watchdog
    last = killed(process, tmp_path).last
    assert last[0].startswith("the main process stood still for ")
    assert "Failing.run (" in last[-1]
    assert "has blocked the event loop" in last[-1]


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "told"), [("engine", "the engine hangs: "), ("trainer-0", "the trainer hangs: ")]
)
def test_a_process_that_hangs_is_named(tmp_path: Path, name: str, told: str) -> None:
    """45 s each."""
    process = start_training(tmp_path, run__steps=10_000)
    wait_for_steps(process, tmp_path, 2)
    (child,) = children_of(process.pid, name)
    os.kill(child, signal.SIGSTOP)
    until_told(process, tmp_path, told)
    assert any(line.startswith(told) for line in killed(process, tmp_path).last)
    os.kill(child, signal.SIGKILL)
