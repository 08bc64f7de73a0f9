"""Nothing that an agent started outlives its command, or holds its output open."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loop.runs import press_ctrl_c_again, start_command, told
from tests.toolbox.processes import is_alive

AGENT = """
import asyncio, os, subprocess, time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from areal_sdk import Agent, Task

STARTED = Path(__file__).with_name("started")

class Hoarder(Agent):
    async def run(self, task, context):
        note(subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
        shell = subprocess.run(["sh", "-c", "setsid sleep 600 >&2 & echo $!"], stdout=subprocess.PIPE)
        note(int(shell.stdout))
        self.pool = ProcessPoolExecutor(1)
        note(await asyncio.wrap_future(self.pool.submit(os.getpid)))
        self.pool.submit(time.sleep, 600)
        return 1.0

class Stubborn(Hoarder):
    async def run(self, task, context):
        await super().run(task, context)
        while True:
            try:
                print("playing", flush=True)
                await asyncio.sleep(600)
            except asyncio.CancelledError:
                print("stays", flush=True)

def note(pid):
    with STARTED.open("a") as file:
        print(pid, file=file)

def tasks(split):
    yield Task("one")
"""


def finish(process: "subprocess.Popen[str]", *, code: int = 0) -> None:
    """Finish as `tests.loop.runs.finish` does, without waiting for processes that would hold the
    output for ever."""
    try:
        output, _ = process.communicate(timeout=60.0)
    except subprocess.TimeoutExpired:
        has_ended = process.poll() is not None
        process.kill()
        who = "somebody holds its output open" if has_ended else "the command has not ended"
        raise AssertionError(f"after 60 s {who}") from None
    assert process.returncode == code, output


class Started:
    """The processes that the agent started, by their own account."""

    def __init__(self, agent: Path) -> None:
        self._file = agent.with_name("started")

    @property
    def pids(self) -> list[int]:
        return [int(line) for line in self._file.read_text().split()] if self._file.exists() else []

    @property
    def alive(self) -> list[int]:
        return [pid for pid in self.pids if is_alive(pid)]


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    path = tmp_path / "hoarder.py"
    path.write_text(AGENT)
    return path


@pytest.fixture
def started(agent: Path) -> Iterator[Started]:
    yield (started := Started(agent))
    for pid in started.alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_command_ends_with_what_its_agent_started(
    agent: Path, started: Started, workers: int, parts: tuple[str, ...]
) -> None:
    settings = ("--model", "tiny", "--set", f"rollout.workers={workers}", *parts)
    finish(start_command("eval", f"{agent}::Hoarder", *settings))
    assert len(started.pids) == 3
    assert started.alive == []


def test_a_second_ctrl_c_ends_it_too(agent: Path, started: Started, parts: tuple[str, ...]) -> None:
    process = start_command("eval", f"{agent}::Stubborn", "--model", "tiny", *parts)
    assert process.stdout is not None
    told(process.stdout, "(playing)")
    process.send_signal(signal.SIGINT)
    told(process.stdout, "(stays)")
    press_ctrl_c_again(process)
    finish(process, code=1)
    assert started.alive == []
