"""A deadline ends a wait, and nothing else."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from areal_sdk.gateway.sampling.deadline import Deadline


async def _items(source: AsyncIterator[int], seconds: float) -> AsyncIterator[int]:
    with Deadline(seconds) as deadline:
        while True:
            deadline.wait()
            item = await anext(source)
            deadline.rest()
            yield item


async def _then_never(*items: int) -> AsyncIterator[int]:
    for item in items:
        yield item
    await asyncio.Event().wait()


async def test_a_wait_that_is_too_long_times_out() -> None:
    items = _items(_then_never(1, 2), 0.05)
    assert [await anext(items), await anext(items)] == [1, 2]
    with pytest.raises(TimeoutError):
        await anext(items)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_the_time_a_consumer_takes_is_not_interrupted() -> None:
    items = _items(_then_never(1, 2), 0.01)
    assert await anext(items) == 1
    await asyncio.sleep(0.05)
    with pytest.raises(TimeoutError):
        await anext(items)


async def test_whoever_cancels_the_task_cancels_it() -> None:
    items = _items(_then_never(), 30.0)
    waiting = asyncio.ensure_future(anext(items))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


@pytest.mark.parametrize("cancels", [False, True])
async def test_a_cancel_that_comes_with_the_deadline_is_not_lost(cancels: bool) -> None:
    deadlines: list[Deadline] = []

    async def wait() -> None:
        with Deadline(30.0) as deadline:
            deadlines.append(deadline)
            deadline.wait()
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    deadlines[0].expire()
    if cancels:
        waiting.cancel()
    with pytest.raises(asyncio.CancelledError if cancels else TimeoutError):
        await waiting


async def test_what_expires_again_while_it_cleans_up_times_out_still() -> None:
    deadlines: list[Deadline] = []
    cleaning = asyncio.Event()

    async def wait() -> None:
        with Deadline(30.0) as deadline:
            deadlines.append(deadline)
            deadline.wait()
            try:
                await asyncio.Event().wait()
            finally:
                cleaning.set()
                await asyncio.sleep(0)  # as an engine does that aborts its request over HTTP

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    deadlines[0].expire()
    await cleaning.wait()
    deadlines[0].expire()
    with pytest.raises(TimeoutError):
        await waiting
    assert waiting.cancelling() == 0


async def test_what_expires_in_its_own_wait_still_has_a_deadline() -> None:
    async def wait() -> None:
        with Deadline(0.05) as deadline:
            deadline.wait()
            deadline.expire()  # as a source does that closes the session it is asked for
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.wait([waiting], timeout=30)
    assert waiting.done()
    with pytest.raises(TimeoutError):
        await waiting


async def test_a_deadline_that_was_kept_leaves_no_timer() -> None:
    with Deadline(0.01) as deadline:
        deadline.wait()
        deadline.rest()
    await asyncio.sleep(0.05)
