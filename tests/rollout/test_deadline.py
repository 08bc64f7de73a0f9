"""User code ends by itself, by its deadline or by Ctrl-C, and each is told from the others."""

import asyncio

import pytest

from areal_sdk.rollout.agents.deadline import INTERRUPTED, CancelledByItselfError, within


async def cancels_its_helper() -> None:
    helper = asyncio.create_task(asyncio.sleep(600))
    helper.cancel()
    await helper


async def is_interrupted() -> None:
    raise asyncio.CancelledError(INTERRUPTED)  # as Ctrl-C raises it in what blocks the loop


async def test_a_cancellation_of_its_own_is_an_error() -> None:
    with pytest.raises(CancelledByItselfError):
        await within(cancels_its_helper(), 60, what="agent")


async def test_ctrl_c_in_code_that_blocks_the_loop_is_no_error_of_that_code() -> None:
    with pytest.raises(asyncio.CancelledError):
        await within(is_interrupted(), 60, what="agent")


@pytest.mark.parametrize("has_begun", [True, False])
async def test_ctrl_c_in_code_that_waits_is_no_error_of_that_code(has_begun: bool) -> None:
    async def waits() -> None:
        await asyncio.wait_for(asyncio.gather(asyncio.sleep(600)), 600)

    others = asyncio.all_tasks()
    caller = asyncio.create_task(within(waits(), 60, what="agent"))
    await asyncio.sleep(0)
    (inner,) = asyncio.all_tasks() - others - {caller}
    if has_begun:
        await asyncio.sleep(0)
    inner.cancel(INTERRUPTED)
    with pytest.raises(asyncio.CancelledError):
        await caller
