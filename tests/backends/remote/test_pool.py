"""Placement over members that never speak: sessions stay, others balance, the unready get nothing."""

import asyncio
import time

import aiohttp
import pytest

from areal_sdk.backends.remote.server_pool import Pool, Server, State
from areal_sdk.errors import EngineError
from areal_sdk.flow import MAX_IMBALANCE
from areal_sdk_sglang.client import SGLangClient


@pytest.fixture
async def pool() -> Pool:
    async with aiohttp.ClientSession() as session:
        members = [Server(SGLangClient(f"http://server-{i}", session)) for i in range(3)]
    pool = Pool(members)
    for member in members:
        await pool.set_state(member, State.READY)
    return pool


async def acquire(pool: Pool, session: str = "") -> Server:
    member = await pool.acquire(session, timeout_s=0.2)
    member.began()
    return member


async def test_requests_go_where_there_is_least(pool: Pool) -> None:
    counts = [(await acquire(pool)).address for _ in range(9)]
    assert {counts.count(member.address) for member in pool.servers} == {3}


async def test_a_session_stays_until_its_server_is_overloaded(pool: Pool) -> None:
    home = await acquire(pool, "a")
    for _ in range(MAX_IMBALANCE):
        assert await acquire(pool, "a") is home
    assert await acquire(pool, "a") is not home


async def test_a_session_leaves_a_server_that_is_not_ready(pool: Pool) -> None:
    home = await acquire(pool, "a")
    for state in (State.SUSPECT, State.BEHIND, State.DRAINING, State.DOWN):
        await pool.set_state(home, state)
        assert await acquire(pool, "a") is not home


async def test_nobody_ready_is_an_error_that_says_why(pool: Pool) -> None:
    for member in pool.servers:
        await pool.set_state(member, State.DOWN, "on fire")
    with pytest.raises(
        EngineError, match=r"0.2 s \(request_wait_s\): http://server-0 is down \(on fire\)"
    ):
        await acquire(pool)


async def test_requests_wait_for_a_server_that_is_being_started_until_it_is_given_up(
    pool: Pool,
) -> None:
    started = pool.servers[0]
    started.expected_by = time.monotonic() + 3600
    for member in pool.servers:
        await pool.set_state(member, State.DOWN, "it died")
    waiting = [asyncio.create_task(pool.acquire("", timeout_s=0.01)) for _ in range(2)]
    done, _ = await asyncio.wait(waiting, timeout=0.2)
    assert not done
    assert pool.is_starting
    await pool.set_state(started, State.READY)
    assert [await one for one in waiting] == [started, started]
    await pool.set_state(started, State.DOWN, "it died")
    waiting = [asyncio.create_task(pool.acquire("", timeout_s=0.01))]
    started.expected_by = 0.0
    await pool.set_state(started, State.DOWN, "it is left down")
    with pytest.raises(EngineError, match=r"server-0 is down \(it is left down\)"):
        await waiting[0]
    assert not pool.is_starting


async def test_a_request_waits_for_a_swap_and_for_the_owner(pool: Pool) -> None:
    for member in pool.servers:
        member.gate.clear()
    waiting = asyncio.create_task(pool.acquire("", timeout_s=60))
    await asyncio.sleep(0)
    pool.running.clear()
    for member in pool.servers:
        member.gate.set()
    done, _ = await asyncio.wait({waiting}, timeout=0.05)
    assert not done
    pool.running.set()
    assert (await waiting).state is State.READY


async def test_a_server_that_is_down_drops_its_streams_at_once(pool: Pool) -> None:
    class Response:
        closed = False

        def close(self) -> None:
            self.closed = True

    response = Response()
    member = pool.servers[0]
    assert isinstance(member.client, SGLangClient)
    member.client._open_streams.add(response)  # type: ignore[arg-type]
    await pool.set_state(member, State.DOWN)
    assert response.closed
