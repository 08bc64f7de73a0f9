"""Processes that ask a child of another process: the token lets them in, and their end is theirs alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from areal_sdk.errors import ChildDiedError, ProcessError
from areal_sdk.process import Child, ProcessSpec, spawn
from areal_sdk.process.frames import Frame, FrameKind
from areal_sdk.process.network.guests import visit


@asynccontextmanager
async def host(log_dir: Path) -> AsyncIterator[Child]:
    child = await spawn(ProcessSpec("host", "tests.process.entries:serve_guests"), log_dir=log_dir)
    try:
        yield child
    finally:
        await child.aclose()


async def guest_of(child: Child, *, token: str = "secret") -> Child:
    address = f"127.0.0.1:{child.hello['port']}"
    return await visit(address, token=token, name="guest", host="host", timeout_s=60)


async def until_answered(child: Child, method: str, answer: object) -> None:
    async with asyncio.timeout(30):
        while (await child.call(method, timeout_s=30)).payload != answer:
            pass  # a call is a round trip


async def test_a_guest_is_answered_as_the_main_process_is(tmp_path: Path) -> None:
    numbers = np.arange(100_000, dtype=np.float32)
    async with host(tmp_path) as child:
        guests = await asyncio.gather(*(guest_of(child) for _ in range(3)))
        asked = [
            one.call("echo", {"from": i}, [numbers], timeout_s=30)
            for i, one in enumerate([child, *guests])
        ]
        for index, reply in enumerate(await asyncio.gather(*asked)):
            assert reply.payload == {"from": index}
            assert np.array_equal(np.frombuffer(reply.buffers[0], np.float32), numbers)
        await asyncio.gather(*(guest.aclose() for guest in guests))


async def test_a_guest_without_the_token_is_refused(tmp_path: Path) -> None:
    async with host(tmp_path) as child:
        with pytest.raises(ProcessError, match="does not know the token"):
            await guest_of(child, token="guess")
        assert (await child.call("pid", timeout_s=30)).payload == child.pid


async def test_the_end_of_a_guest_cancels_its_requests_and_no_others(tmp_path: Path) -> None:
    async with host(tmp_path) as child:
        leaves, stays = await guest_of(child), await guest_of(child)
        left, held = (
            asyncio.create_task(guest.call("hold", name, timeout_s=60))
            for guest, name in ((leaves, "left"), (stays, "held"))
        )
        await until_answered(child, "held", ["held", "left"])
        await leaves.aclose()
        await until_answered(child, "held", ["held"])
        with pytest.raises(ChildDiedError):
            await left
        await stays.call("release", timeout_s=30)
        assert (await held).payload == "held"
        await stays.aclose()


async def test_a_guest_that_breaks_the_protocol_is_cut_off(tmp_path: Path) -> None:
    async with host(tmp_path) as child:
        guest = await guest_of(child)
        left = asyncio.create_task(guest.call("hold", "left", timeout_s=60))
        await until_answered(child, "held", ["left"])
        guest._connection.send(Frame(FrameKind.FAIL, 1, "hold", {"reason": "not an error"}))
        with pytest.raises(ChildDiedError):
            await left
        await until_answered(child, "held", [])


async def test_a_guest_learns_of_the_end_of_its_host(tmp_path: Path) -> None:
    async with host(tmp_path) as child:
        guest = await guest_of(child)
        with suppress(ChildDiedError):
            await child.call("kill", timeout_s=30)
        async with asyncio.timeout(30):
            await asyncio.shield(guest.exited)
        with pytest.raises(ChildDiedError, match="host"):
            await guest.call("pid", timeout_s=1)


async def test_a_guest_that_does_not_read_is_cut_off_and_holds_up_nobody(tmp_path: Path) -> None:
    async with host(tmp_path) as child:
        guest = await guest_of(child)
        transport = guest._connection._transport
        assert transport is not None
        transport.pause_reading()
        asked = asyncio.create_task(guest.call("flood", timeout_s=60))
        await until_answered(child, "num_floods", 1)
        assert (await child.call("pid", timeout_s=30)).payload == child.pid
        transport.resume_reading()
        with pytest.raises(ChildDiedError):
            await asked
