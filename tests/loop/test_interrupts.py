"""Ctrl-C: clean, at any moment, and nothing that could be saved is lost."""

import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from areal_sdk.loop.learning.state import RunSummary
from tests.loop.runs import (
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
from tests.toolbox.processes import deaf_to_ctrl_c

HELD_AGENT = """
import asyncio
from pathlib import Path
from areal_sdk import Agent, Task

class Held(Agent):
    async def run(self, task, context):
        while task.data["late"] and Path("{hold}").exists():
            await asyncio.sleep(0.05)
        turn = await context.generate([{{"role": "user", "content": "a"}}], max_new_tokens=8)
        return sum(token < 128 for token in turn.output_tokens) / 8

def tasks(split):
    for index in range(64):
        yield Task(f"{{split}}-{{index}}", {{"late": index >= 8}})
"""

UGLY = ("Traceback", "never retrieved", "Exception ignored", "never awaited", "internal error")


def wait_until(process: "subprocess.Popen[str]", happened: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not happened() and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_was_learnt_is_saved_when_the_trainer_is_idle(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    hold, agent = tmp_path / "hold", tmp_path / "held.py"
    hold.touch()
    agent.write_text(HELD_AGENT.format(hold=hold))
    process = start_training(tmp_path, *parts, agent=agent, run__steps=3, rollout__shuffle=False)
    wait_for_steps(process, tmp_path, 2)  # the first 8 tasks; the third step waits
    process.send_signal(signal.SIGINT)
    output = finish(process, code=1)
    assert "step 2 is saved: no step is lost" in output
    assert f"areal-sdk train --resume {tmp_path / 'run'}" in output
    hold.unlink()
    finish(resume_training(tmp_path))
    steps = [row["step"] for row in run_dir(tmp_path).read_metrics(kind="step")]
    assert steps == [1, 2, 3], "nothing was done twice"


@pytest.mark.parametrize(
    ("preexec", "number"), [(None, signal.SIGTERM), (deaf_to_ctrl_c, signal.SIGINT)]
)
def test_sigterm_and_ctrl_c_of_a_script_end_a_run(
    tmp_path: Path, preexec: Callable[[], None] | None, number: int, parts: tuple[str, ...]
) -> None:
    hold, agent = tmp_path / "hold", tmp_path / "held.py"
    hold.touch()
    agent.write_text(HELD_AGENT.format(hold=hold))
    process = start_training(
        tmp_path, *parts, agent=agent, preexec=preexec, run__steps=3, rollout__shuffle=False
    )
    wait_for_steps(process, tmp_path, 2)
    process.send_signal(number)
    output = finish(process, code=1)
    assert "step 2 is saved: no step is lost" in output
    assert f"areal-sdk train --resume {tmp_path / 'run'}" in output
    assert not any(word in output for word in UGLY), output
    ledger = run_dir(tmp_path).read_ledger()
    assert ledger is not None
    assert ledger["running"] == 0


def test_a_second_ctrl_c_waits_for_nothing(tmp_path: Path) -> None:
    agent = tmp_path / "deaf.py"
    agent.write_text(
        "import asyncio\nfrom functools import partial\nfrom areal_sdk import Agent, Task\n"
        "class Deaf(Agent):\n"
        "    async def run(self, task, context):\n"
        "        loop = asyncio.get_running_loop()\n"
        "        loop.call_soon(partial(print, 'playing', flush=True))\n"  # it waits in `try` by then
        "        while True:\n"
        "            try:\n"
        "                await asyncio.sleep(3600)\n"
        "            except asyncio.CancelledError:\n"
        "                print('stays', flush=True)\n"
        "def tasks(split):\n"
        "    yield Task('one')\n"
    )
    (tmp_path / "hold-close").touch()
    process = start_command(
        *("train", str(agent), "--model", "tiny", "--set", "eval.before=false"),
        *("--set", f"run.dir={tmp_path}", "--set", "run.name=run"),
        *SCRIPTED,
    )
    assert process.stdout is not None
    told(process.stdout, "(playing)")
    process.send_signal(signal.SIGINT)
    told(process.stdout, "(stays)")
    press_ctrl_c_again(process)
    output = finish(process, code=1)
    assert "interrupted" in output
    assert "no step was taken: a resumed run begins anew" in output
    assert f"go on with: areal-sdk train --resume {tmp_path / 'run'}" in output
    assert "run directory" not in output, "it waited for the end after all"
    assert not any(word in output for word in UGLY), output


MOMENTS: dict[str, Callable[[Path, int], object]] = {
    "start-up": lambda run, pid: run.exists(),
    "the evaluation before": lambda run, pid: list(run.glob("episodes/*")),
    "teardown": lambda run, pid: (run / "checkpoints" / "final").exists(),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_is_never_a_traceback(tmp_path: Path, moment: str, parts: tuple[str, ...]) -> None:
    process = start_training(tmp_path, *parts, run__steps=1, eval__before=True, eval__tasks=4)
    wait_until(process, lambda: MOMENTS[moment](tmp_path / "run", process.pid))
    assert interrupted(process) in ((0, 1) if moment == "teardown" else (1,))


def test_ctrl_c_while_an_engine_starts_is_no_traceback(tmp_path: Path) -> None:
    process = start_training(tmp_path)
    wait_until(process, lambda: children_of(process.pid, "engine"))
    assert interrupted(process) == 1


def interrupted(process: "subprocess.Popen[str]") -> int:
    """The exit code of a run that got Ctrl-C, ended and said nothing ugly."""
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=DEADLINE_S)
    assert not any(word in output for word in UGLY), output
    return process.returncode


def summary(steps: int, saved_step: int | None) -> RunSummary:
    return RunSummary("run", steps, steps, 1.0, "interrupted", saved_step=saved_step)


@pytest.mark.parametrize(
    ("steps", "saved", "said"),
    [
        (0, None, "no step was taken: a resumed run begins anew"),
        (7, 7, "step 7 is saved: no step is lost"),
        (7, 4, "steps 5 to 7 could not be saved: a resumed run takes them again"),
        (5, 4, "step 5 could not be saved: a resumed run takes it again"),
        (2, None, "steps 1 to 2 could not be saved"),
        (0, 20, "step 20 is saved"),  # stopped while it was being resumed
    ],
)
def test_an_interrupted_run_says_what_was_lost(steps: int, saved: int | None, said: str) -> None:
    assert said in summary(steps, saved).lost


WARMED_AGENT = """
from pathlib import Path
from areal_sdk import Agent, Task, hookimpl

class Warmed(Agent):
    async def run(self, task, context):
        turn = await context.generate([{"role": "user", "content": "a"}], max_new_tokens=4)
        return sum(token < 128 for token in turn.output_tokens) / 4

def tasks(split):
    for index in range(64):
        yield Task(f"{split}-{index}")

def demonstrations():
    for word in ("aaaa", "eeee", "iiii", "oooo"):
        yield [{"role": "user", "content": "a"}, {"role": "assistant", "content": word}]

@hookimpl
def on_weights(update):
    with (Path(__file__).parent / "told.txt").open("a") as file:
        print(update.version, Path(update.path).exists(), file=file)
"""


@pytest.mark.slow
def test_a_warm_up_that_was_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    agent = tmp_path / "warmed.py"
    agent.write_text(WARMED_AGENT)
    process = start_training(tmp_path, agent=agent, run__steps=1, sft__steps=150, sft__batch=2)
    wait_for_steps(process, tmp_path, 3, kind="sft")
    process.send_signal(signal.SIGINT)
    output = finish(process, code=1)
    assert "the warm-up so far is saved" in output
    made = [row["step"] for row in run_dir(tmp_path).read_metrics(kind="sft")]
    assert 3 <= len(made) < 150
    assert "resumed: it goes on before its first step" in finish(resume_training(tmp_path))
    steps = [row["step"] for row in run_dir(tmp_path).read_metrics(kind="sft")]
    assert steps[len(made) :] == list(range(steps[len(made)], 151))
    assert steps[len(made)] in (made[-1] + 1, made[-1] + 2), "at most one more was taken unseen"
    assert len(run_dir(tmp_path).read_steps()) == 1
    told = (tmp_path / "told.txt").read_text().splitlines()
    assert told[:1] == ["0 True"], "the weights after the warm-up are told too"
