"""Ctrl-C ends a run whatever the agent's code does about it."""

import asyncio
import contextlib
import signal
import threading
from pathlib import Path

import pytest

from areal_sdk.errors import ConfigError
from areal_sdk.loop import shutdown
from areal_sdk.loop.api import train
from areal_sdk.loop.shutdown import StoppedAtOnce, run_to_the_end
from areal_sdk.types import Task
from tests.loop.runs import finish, run_dir, start_command, told

STUBBORN_AGENTS = """
import asyncio, time
from areal_sdk import Agent, Task

class Deaf(Agent):
    async def run(self, task, context):
        print("playing", flush=True)
        while True:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                pass

class Blocking(Agent):
    async def run(self, task, context):
        print("playing", flush=True)
        time.sleep(3600)

class Threaded(Agent):
    async def run(self, task, context):
        print("playing", flush=True)
        await asyncio.to_thread(time.sleep, 3600)

def tasks(split):
    for index in range(4):
        yield Task(f"{split}-{index}")
"""

SYNC_CLIENT = """
from openai import OpenAI
from areal_sdk import Agent, Task

class Sync(Agent):
    async def run(self, task, context):
        client = OpenAI(base_url=context.base_url, api_key=context.api_key)
        client.chat.completions.create(model=context.model, messages=[])  # line 8
        return 1.0

def tasks(split):
    for index in range(4):
        yield Task(f"{split}-{index}")
"""


def test_the_result_and_the_error_of_main_come_back() -> None:
    async def seven() -> int:
        return 7

    async def fail() -> None:
        raise ValueError("oops")

    assert run_to_the_end(seven()) == 7
    with pytest.raises(ValueError, match="oops"):
        run_to_the_end(fail())


def test_a_task_that_ignores_cancellation_holds_nobody_up() -> None:
    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        asyncio.create_task(deaf(released), name="deaf").add_done_callback(print)
        await asyncio.sleep(0)

    async def deaf(released: threading.Event) -> None:
        while not released.is_set():
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    released = threading.Event()
    run_to_the_end(main())


def test_ctrl_c_before_the_first_line_of_main_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    make = asyncio.new_event_loop

    def interrupted() -> asyncio.AbstractEventLoop:
        signal.raise_signal(signal.SIGINT)  # while the loop is being made
        return make()

    async def main() -> None: ...

    monkeypatch.setattr(asyncio, "new_event_loop", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_to_the_end(main())  # warnings are errors: neither loop nor coroutine may leak


@pytest.mark.parametrize("met", ["main", "a task that main awaits", "the loop"])
def test_a_second_ctrl_c_stops_at_once_wherever_it_lands(
    met: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutdown, "SAME_WITHIN_S", 0.0)

    async def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)

    async def main() -> None:
        signal.raise_signal(signal.SIGINT)
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        if met == "main":
            await interrupted()
        elif met == "a task that main awaits":
            async with asyncio.TaskGroup() as group:
                group.create_task(interrupted())
        asyncio.get_running_loop().call_soon(signal.raise_signal, signal.SIGINT)
        await asyncio.sleep(60)

    with pytest.raises(StoppedAtOnce):
        run_to_the_end(main())


@pytest.mark.parametrize("again", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_twice_at_once_is_one_signal(
    number: signal.Signals, again: signal.Signals
) -> None:
    """`timeout` does this: it signals its child and then the group of its child."""
    is_saved = False

    async def main() -> None:
        nonlocal is_saved
        signal.raise_signal(number)
        try:
            await asyncio.sleep(60)
        finally:
            signal.raise_signal(again)
            await asyncio.sleep(0)
            is_saved = True

    with pytest.raises(KeyboardInterrupt) as caught:
        run_to_the_end(main())
    assert caught.type is KeyboardInterrupt
    assert is_saved


def test_inside_a_running_loop_the_error_names_the_way_out() -> None:
    async def main() -> None:
        with pytest.raises(ConfigError, match=r"await areal_sdk\.aio\.train"):
            run_to_the_end(asyncio.sleep(0))

    asyncio.run(main())


def test_training_inside_a_running_loop_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    async def cell() -> None:
        with pytest.raises(ConfigError, match=r"await areal_sdk\.aio\.train\(.*!areal-sdk train"):
            train(
                lambda task, context: 1.0,
                model="tiny",
                tasks=[Task("one")],
                run={"dir": tmp_path / "runs"},
            )

    asyncio.run(cell())
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("agent", ["Deaf", "Blocking", "Threaded"])
def test_ctrl_c_ends_a_run_whose_agent_ignores_it(
    tmp_path: Path, agent: str, parts: tuple[str, ...]
) -> None:
    path = tmp_path / "stubborn.py"
    path.write_text(STUBBORN_AGENTS)
    process = start_command(
        *("train", f"{path}::{agent}", "--model", "tiny", *parts),
        *("--set", f"run.dir={tmp_path}", "--set", "run.name=run", "--set", "eval.before=false"),
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "playing" in line:
            break
    process.send_signal(signal.SIGINT)
    output = finish(process, code=1)
    assert f"areal-sdk train --resume {tmp_path / 'run'}" in output
    ledger = run_dir(tmp_path).read_ledger()
    assert ledger is not None
    assert set(ledger["dropped"]) == {"cancelled"}, "Ctrl-C is not the agent's error"


@pytest.mark.parametrize("command", ["train", "eval"])
def test_a_client_that_waits_for_the_gateway_it_blocks_is_told_and_ctrl_c_ends_it(
    tmp_path: Path, command: str, parts: tuple[str, ...]
) -> None:
    path = tmp_path / "sync.py"
    path.write_text(SYNC_CLIENT)
    process = start_command(
        *(command, str(path), "--model", "tiny", "--set", "eval.before=false", *parts),
        *("--set", f"run.dir={tmp_path}", "--set", "run.name=run"),
    )
    assert process.stdout is not None
    warning = told(process.stdout, "(.*AsyncOpenAI.*)")
    assert f"Sync.run ({path}:8" in warning
    assert "waits for ever" in warning
    assert "plain `def`" in warning
    assert "rollout.workers = 1" in warning
    process.send_signal(signal.SIGINT)
    output = finish(process, code=1)
    assert "Traceback" not in output
    if command == "train":
        assert f"areal-sdk train --resume {tmp_path / 'run'}" in output, "it unwound"


def test_sigterm_ends_the_run_of_a_program_that_ignores_ctrl_c() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    ignored = threading.Event()

    async def main() -> None:
        signal.raise_signal(signal.SIGINT)
        await asyncio.sleep(0)
        ignored.set()
        signal.raise_signal(signal.SIGTERM)
        await asyncio.sleep(3600)

    try:
        with pytest.raises(KeyboardInterrupt):
            run_to_the_end(main())
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
    assert ignored.is_set()
