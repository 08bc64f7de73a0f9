"""The pool of killable workers: one bad call costs one worker and nobody else anything."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from areal_sdk.errors import CallTimeoutError, ChildDiedError, ProcessError, RemoteError
from areal_sdk.process.pools.workers import WorkerPool
from tests.toolbox.processes import children_of_this_process

ENTRY = "tests.process.entries:one_at_a_time"


@asynccontextmanager
async def pool_of(size: int, tmp_path: Path) -> AsyncIterator[WorkerPool]:
    args = {"broken": str(tmp_path / "broken")}
    async with WorkerPool(ENTRY, size=size, args=args, log_dir=tmp_path) as pool:
        yield pool


async def pid_of(pool: WorkerPool) -> int:
    return int((await pool.call("pid", timeout_s=60)).payload)


async def test_a_hung_call_is_killed_and_the_queued_ones_are_served(tmp_path: Path) -> None:
    async with pool_of(1, tmp_path) as pool:
        hung = asyncio.create_task(pool.call("spin", timeout_s=0.3))
        queued = [asyncio.create_task(pool.call("echo", i, timeout_s=60)) for i in range(5)]
        with pytest.raises(CallTimeoutError, match="did not answer within"):
            await hung
        assert [reply.payload for reply in await asyncio.gather(*queued)] == [0, 1, 2, 3, 4]
        assert pool.num_replaced == 1


async def test_a_crash_costs_only_the_call_that_crashed(tmp_path: Path) -> None:
    async with pool_of(2, tmp_path) as pool:
        crash = pool.call("kill", timeout_s=60)
        echoes = [pool.call("echo", i, timeout_s=60) for i in range(6)]
        crashed, *rest = await asyncio.gather(crash, *echoes, return_exceptions=True)
        assert isinstance(crashed, ChildDiedError)
        assert [getattr(reply, "payload", reply) for reply in rest] == [0, 1, 2, 3, 4, 5]


async def test_an_exception_keeps_the_worker(tmp_path: Path) -> None:
    async with pool_of(1, tmp_path) as pool:
        before = await pid_of(pool)
        with pytest.raises(RemoteError, match="ValueError: nope"):
            await pool.call("fail", "nope", timeout_s=60)
        with pytest.raises(TypeError):
            await pool.call("echo", object(), timeout_s=60)
        assert await pid_of(pool) == before
        assert pool.num_replaced == 0


async def test_cancelling_a_call_frees_its_worker(tmp_path: Path) -> None:
    async with pool_of(1, tmp_path) as pool:
        call = asyncio.create_task(pool.call("spin", timeout_s=60))
        await asyncio.sleep(0.1)
        call.cancel()
        assert (await pool.call("echo", "next", timeout_s=60)).payload == "next"


async def test_a_worker_that_died_idle_is_replaced_before_the_next_call(tmp_path: Path) -> None:
    async with pool_of(1, tmp_path) as pool:
        before = await pid_of(pool)
        os.kill(before, signal.SIGKILL)
        with suppress(ChildDiedError):  # its death is noticed before the call, or by it
            await pool.call("echo", timeout_s=60)
        assert await pid_of(pool) != before


async def test_a_pool_whose_workers_no_longer_start_says_so_and_recovers(tmp_path: Path) -> None:
    async with pool_of(1, tmp_path) as pool:
        (tmp_path / "broken").touch()
        with pytest.raises(ChildDiedError):
            await pool.call("kill", timeout_s=60)
        with pytest.raises(ProcessError, match=r"failed to start.*this worker is broken") as caught:
            await pool.call("echo", timeout_s=60)
        assert not isinstance(caught.value, RemoteError)
        (tmp_path / "broken").unlink()
        assert (await pool.call("echo", "back", timeout_s=60)).payload == "back"


async def test_a_pool_that_cannot_start_leaves_nothing_behind(
    tmp_path: Path, others: set[str]
) -> None:
    (tmp_path / "broken").touch()
    with pytest.raises(RemoteError, match="this worker is broken"):
        async with pool_of(4, tmp_path):
            pass
    assert children_of_this_process() <= others


async def test_waiting_for_a_worker_has_a_deadline_too(tmp_path: Path) -> None:
    async with pool_of(1, tmp_path) as pool:
        busy = asyncio.create_task(pool.call("hang", timeout_s=60))
        await asyncio.sleep(0)  # it takes the only worker
        with pytest.raises(CallTimeoutError, match=r"waited 0.1 s for one of 1 workers"):
            await pool.call("echo", timeout_s=60, queue_timeout_s=0.1)
        busy.cancel()


async def test_closing_a_pool_fails_running_and_queued_calls(tmp_path: Path) -> None:
    async with pool_of(1, tmp_path) as pool:
        calls = [asyncio.create_task(pool.call("hang", timeout_s=60)) for _ in range(3)]
        await asyncio.sleep(0.1)
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(result, ProcessError) for result in results)


async def test_closing_a_pool_wakes_a_queued_call_whose_worker_was_just_lost(
    tmp_path: Path,
) -> None:
    async with pool_of(1, tmp_path) as pool:
        busy = asyncio.create_task(pool.call("hang", timeout_s=60))
        queued = asyncio.create_task(pool.call("echo", timeout_s=60))
        await asyncio.sleep(0.05)
        busy.cancel()
        await asyncio.sleep(0)  # the replacement is due, and not begun
    async with asyncio.timeout(30):
        with pytest.raises(ProcessError, match="closed pool"):
            await queued
