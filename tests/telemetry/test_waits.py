"""A waiting part can say on what it waits, and never waits for ever."""

import asyncio
import os
import signal

import pytest

from areal_sdk.errors import WaitTimeoutError
from areal_sdk.telemetry.live.waits import current_waits, describe_waits, waiting, waits_on_signal


async def test_a_wait_that_takes_too_long_is_named() -> None:
    with pytest.raises(WaitTimeoutError, match=r"waited 0.01 s for trainer: step 12"):
        async with waiting("trainer: step 12", timeout_s=0.01):
            await asyncio.Event().wait()
    assert current_waits() == []


async def test_current_waits_are_listed_longest_first() -> None:
    async with waiting("outer", timeout_s=60), waiting("inner", timeout_s=5):
        assert [wait.name for wait in current_waits()] == ["outer", "inner"]
        assert current_waits()[1].as_json()["timeout_s"] == 5
    assert current_waits() == []


async def test_an_await_with_the_same_deadline_raises_its_own_error() -> None:
    async def give_up() -> None:
        shown.append(current_waits()[0].timeout_s)
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            raise ValueError("no room") from None

    shown: list[float] = []
    with pytest.raises(ValueError, match="no room"):
        async with waiting("room", timeout_s=0.01, slack_s=60):
            await give_up()
    assert shown == [0.01]


async def test_an_inner_deadline_is_not_claimed() -> None:
    with pytest.raises(TimeoutError):
        async with waiting("outer", timeout_s=60), asyncio.timeout(0.01):
            await asyncio.Event().wait()


async def test_cancelling_a_wait_ends_it() -> None:
    async def wait() -> None:
        async with waiting("for ever", timeout_s=600):
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    assert "for ever" in describe_waits()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert current_waits() == []


async def test_a_signal_prints_who_waits_for_what(capfd: pytest.CaptureFixture[str]) -> None:
    async def engine_start() -> None:
        async with waiting("engine: the first token", timeout_s=600):
            await asyncio.Event().wait()

    task = asyncio.create_task(engine_start(), name="engine")
    await asyncio.sleep(0)
    with waits_on_signal():
        os.kill(os.getpid(), signal.SIGUSR1)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    printed = capfd.readouterr().err
    assert "of 600 s  engine: the first token" in printed
    assert "engine: " in printed
    assert "test_waits.py:" in printed
