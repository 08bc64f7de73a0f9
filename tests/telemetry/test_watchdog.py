"""The coroutine that blocks the loop is named, once, and nobody else is ever blamed."""

import asyncio
import logging
import selectors
import socket
import sys
import threading
import time
from collections.abc import Coroutine

import pytest

from areal_sdk.telemetry import watchdog as watchdog_module
from areal_sdk.telemetry.watchdog import Blockage, Watchdog


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


async def test_a_blocking_call_is_named_with_its_line_and_task() -> None:
    (blockage,) = await watch(Agent().blocks())
    line = Agent.blocks.__code__.co_firstlineno + 1
    assert blockage.coroutine == "Agent.blocks"
    assert blockage.place == f"{__file__}:{line}"
    assert blockage.task == "episode-7"
    assert 0.1 <= blockage.blocked_s < 0.5
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


def until_in_select(thread: int) -> None:
    while sys._current_frames()[thread].f_code.co_name != "select":
        pass


async def test_a_loop_that_gets_no_time_is_not_blamed() -> None:
    """The machine is overloaded: no tick came, but the loop's thread waits for events."""
    ours, theirs = socket.socketpair()
    selector = selectors.DefaultSelector()
    selector.register(ours, selectors.EVENT_READ)
    waiting = threading.Thread(target=selector.select)
    waiting.start()
    found: list[Blockage] = []
    assert waiting.ident is not None
    await asyncio.to_thread(until_in_select, waiting.ident)
    Watchdog(report=found.append)._examine(asyncio.get_running_loop(), waiting.ident, 1.0)
    theirs.send(b"x")
    waiting.join()
    for closing in (selector, ours, theirs):
        closing.close()
    assert found == []


async def test_a_short_wait_blames_nobody() -> None:
    """On a busy machine half a second passes over code that does nothing wrong."""
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
    ours = Blockage("open_rig", "rig.py:3", "sleep", "t", 2.0, "", is_users=False)
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
