"""The coroutine that blocks the loop is named, once, and nobody else is ever blamed."""

import asyncio
import importlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine

import pytest

from areal_sdk.telemetry.live import watchdog as watchdog_module
from areal_sdk.telemetry.live.watchdog import Blockage, Watchdog

LOOPS = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": importlib.import_module("uvloop").new_event_loop,
}
"""An agent's imports may install uvloop."""


class Agent:
    async def blocks(self) -> None:
        time.sleep(0.5)  # noqa: ASYNC251 - the point

    async def blocks_inside_a_library(self) -> None:
        blocked = threading.Event()
        blocked.wait(0.5)

    async def computes(self) -> None:
        until = time.thread_time() + 0.5  # of CPU, however busy the machine is
        while time.thread_time() < until:
            pass


async def watch(*blocking: Coroutine[None, None, None]) -> list[Blockage]:
    found: list[Blockage] = []
    async with Watchdog(threshold_s=0.1, waiting_s=0.1, report=found.append):
        for coroutine in blocking:
            task = asyncio.create_task(coroutine, name="episode-7")
            await task
            await asyncio.sleep(0.15)
    return found


@pytest.mark.parametrize("make_loop", LOOPS.values(), ids=LOOPS)
def test_a_blocking_call_is_named_with_its_line_and_task(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    with asyncio.Runner(loop_factory=make_loop) as runner:
        (blockage,) = runner.run(watch(Agent().blocks()))
    line = Agent.blocks.__code__.co_firstlineno + 1
    assert blockage.coroutine == "Agent.blocks"
    assert blockage.place == f"{__file__}:{line}"
    assert blockage.task == "episode-7"
    assert blockage.blocked_s >= 0.1
    assert "asyncio.to_thread" in str(blockage)


async def test_the_coroutine_is_named_when_a_library_blocks_below_it() -> None:
    (blockage,) = await watch(Agent().blocks_inside_a_library())
    assert blockage.coroutine == "Agent.blocks_inside_a_library"
    assert blockage.calls == "Condition.wait"
    assert "inside Condition.wait" in str(blockage)


async def test_a_long_computation_is_named() -> None:
    (blockage,) = await watch(Agent().computes())
    assert blockage.coroutine == "Agent.computes"


async def test_a_blocking_callback_is_named() -> None:
    found: list[Blockage] = []

    def callback() -> None:
        time.sleep(0.4)

    async with Watchdog(threshold_s=0.1, waiting_s=0.1, report=found.append) as watchdog:
        asyncio.get_running_loop().call_soon(callback)
        await asyncio.sleep(0.6)
    assert [blockage.coroutine.rpartition(".")[2] for blockage in found] == ["callback"]
    assert watchdog.longest_s > 0.2


async def test_each_place_is_reported_once() -> None:
    agent = Agent()
    assert len(await watch(agent.blocks(), agent.blocks(), agent.computes())) == 2


async def test_an_idle_loop_is_not_blamed() -> None:
    assert await watch(asyncio.sleep(0.4)) == []


@pytest.mark.parametrize("make_loop", LOOPS.values(), ids=LOOPS)
def test_a_loop_that_gets_no_time_is_not_blamed(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """The machine is overloaded: no tick came, but the loop's thread waits for events."""
    found: list[Blockage] = []
    over = asyncio.Event()
    is_watched = threading.Event()
    watchdog = Watchdog(threshold_s=60.0, report=found.append)

    async def main() -> None:
        async with watchdog:
            is_watched.set()
            await over.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(main())

    loop = make_loop()
    thread = threading.Thread(target=run)
    thread.start()
    assert is_watched.wait(10.0)
    assert thread.ident is not None
    while sys._current_frames()[thread.ident].f_code.co_name not in ("select", "run"):
        pass  # uvloop waits in C, below whoever runs it
    watchdog._examine(loop, thread.ident, 1.0)
    loop.call_soon_threadsafe(over.set)
    thread.join()
    assert found == []


async def test_a_short_wait_blames_nobody() -> None:
    """Half a second passes over code that does nothing wrong, on a busy machine."""
    found: list[Blockage] = []
    async with Watchdog(threshold_s=0.1, waiting_s=60.0, report=found.append):
        await asyncio.create_task(Agent().blocks())
    assert found == []


async def test_a_computation_is_blamed_however_short_the_wait_for_others() -> None:
    found: list[Blockage] = []
    async with Watchdog(threshold_s=0.1, waiting_s=60.0, report=found.append):
        await asyncio.create_task(Agent().computes())
    assert [blockage.coroutine for blockage in found] == ["Agent.computes"]


async def test_a_call_that_goes_on_is_reported_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog_module, "REMIND_AFTER_S", 0.2)
    first, *again = await watch(Agent().blocks())
    assert not first.is_reminder
    assert again
    assert all(blockage.is_reminder and blockage.blocked_s >= 0.2 for blockage in again)


def test_only_the_users_code_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    users = Blockage("Agent.run", "agent.py:3", "sleep", "t", 2.0, "")
    ours = Blockage("open_services", "services.py:3", "sleep", "t", 2.0, "", is_users=False)
    with caplog.at_level(logging.INFO, logger="areal_sdk.watchdog"):
        watchdog_module.log_blockage(users)
        watchdog_module.log_blockage(ours)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "rollout.workers" in caplog.messages[0]
    assert "rollout.workers" not in caplog.messages[1]


async def test_a_callback_of_ours_or_of_a_library_is_not_the_users() -> None:
    found: list[Blockage] = []
    async with Watchdog(threshold_s=0.1, waiting_s=0.1, report=found.append):
        asyncio.get_running_loop().call_soon(time.sleep, 0.4)
        await asyncio.sleep(0.5)
    assert [blockage.is_users for blockage in found] in ([], [False])
