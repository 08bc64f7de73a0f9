"""Services: typed calls between real processes."""

import asyncio
import math
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from areal_sdk.errors import ProcessError, RemoteError
from areal_sdk.process import Child, ProcessSpec, spawn
from areal_sdk.process.frames import MAX_HEADER_BYTES, view_of
from areal_sdk.process.services import Answer, Client, LoopAnswering, StreamClient
from areal_sdk.process.services.contract import method_of
from tests.process.service_entry import ASKING, ASYNC, SYNC, Clerk, Item, Kind, Older, Shop, Till
from tests.toolbox.waiting import until

TIMEOUT_S = 60.0
"""Seconds for any answer of a test's child."""


@asynccontextmanager
async def child_of(entry: str, tmp_path: Path) -> AsyncIterator[Child]:
    child = await spawn(ProcessSpec("shop", entry), log_dir=tmp_path)
    try:
        yield child
    finally:
        await child.aclose()


@pytest.mark.parametrize("entry", [SYNC, ASYNC])
async def test_values_arrive_as_the_types_of_the_contract(tmp_path: Path, entry: str) -> None:
    async with child_of(entry, tmp_path) as child:
        shop = Client[Shop](child)
        sent = Item(Kind.ODD, (1, 2), {7: -0.5}, np.arange(3, dtype=np.int32), math.nan)
        (item,), name = await shop.call(Shop.echo, [sent], None, timeout_s=TIMEOUT_S)
        assert (item.kind, item.counts, item.by_token, name) == (Kind.ODD, (1, 2), {7: -0.5}, None)
        assert math.isnan(item.loss)
        assert item.values is not None
        assert np.frombuffer(view_of(item.values), np.int32).tolist() == [0, 1, 2]
        assert await shop.call(Shop.later, timeout_s=TIMEOUT_S) == 7
        ones = Item(Kind.PLAIN, values=np.ones(4, np.float32))
        doubled = await shop.call(Shop.doubled, ones, timeout_s=TIMEOUT_S)
        assert doubled.values is not None
        assert np.frombuffer(view_of(doubled.values), np.float32).tolist() == [2.0] * 4


async def test_numbers_of_numpy_arrive_as_numbers(tmp_path: Path) -> None:
    async with child_of(ASYNC, tmp_path) as child:
        item = Item(Kind.PLAIN, (np.int64(193), np.array(7)), {np.int64(5): np.float32(0.5)})  # type: ignore[arg-type,dict-item]
        (echoed,), _ = await Client[Shop](child).call(Shop.echo, [item], "", timeout_s=TIMEOUT_S)
        assert (echoed.counts, echoed.by_token) == ((193, 7), {5: 0.5})
        assert {type(count) for count in echoed.counts} == {int}


async def test_numbers_that_are_not_finite_arrive_as_they_are(tmp_path: Path) -> None:
    async with child_of(ASYNC, tmp_path) as child:
        item = Item(Kind.PLAIN, by_token={1: math.inf, 2: -math.inf, 3: math.nan}, loss=-math.inf)
        (echoed,), _ = await Client[Shop](child).call(Shop.echo, [item], "", timeout_s=TIMEOUT_S)
        assert (echoed.loss, echoed.by_token[1], echoed.by_token[2]) == (
            -math.inf,
            math.inf,
            -math.inf,
        )
        assert math.isnan(echoed.by_token[3])


async def test_bulk_is_never_read_as_a_number_nor_a_number_as_bulk(tmp_path: Path) -> None:
    async with child_of(ASYNC, tmp_path) as child:
        counts = StreamClient[Older](child).stream(Older.counts, b"3", idle_timeout_s=TIMEOUT_S)
        with pytest.raises(RemoteError, match=r"Shop.counts\(end\) was called with .*bulk"):
            await anext(counts)
        shop = Client[Shop](child)
        for bad in (b"three", b"\0", b"\xff", np.arange(3)):
            item = Item(Kind.PLAIN, (bad,))  # type: ignore[arg-type]
            with pytest.raises((RemoteError, TypeError), match=r"Shop.echo\(items, name\)"):
                await shop.call(Shop.echo, [item], "", timeout_s=TIMEOUT_S)
    with pytest.raises(
        ProcessError, match=r"called with \[0\](?s:.*)expected bulk, one of 1 buffers"
    ):
        method_of(Older.counts).arguments([0], [memoryview(b"three")])


@pytest.mark.parametrize("entry", [SYNC, ASYNC])
@pytest.mark.parametrize("method", [Shop.says, Shop.says_later])
async def test_the_caller_is_told_that_an_answer_cannot_be_sent(
    tmp_path: Path, entry: str, method: Callable[[Shop, int, int], Answer[str]]
) -> None:
    async with child_of(entry, tmp_path) as child:
        shop = Client[Shop](child)
        with pytest.raises(
            RemoteError, match=r"answer of Shop.says.* cannot be sent: .*surrogates"
        ):
            await shop.call(method, 0xD800, 1, timeout_s=TIMEOUT_S)
        with pytest.raises(RemoteError, match="send bulk data as buffers"):
            await shop.call(method, ord("x"), MAX_HEADER_BYTES, timeout_s=TIMEOUT_S)
        assert await shop.call(method, ord("x"), 2, timeout_s=TIMEOUT_S) == "xx"


@pytest.mark.parametrize("entry", [SYNC, ASYNC])
async def test_what_does_not_fit_the_contract_is_refused_by_name(
    tmp_path: Path, entry: str
) -> None:
    async with child_of(entry, tmp_path) as child:
        older = Client[Older](child)
        with pytest.raises(RemoteError, match=r"Counter has no method 'closes'; it has .*later"):
            await older.call(Older.closes, timeout_s=TIMEOUT_S)
        with pytest.raises(
            RemoteError, match=r"Shop.echo\(items, name\) was called with \['tea'\]"
        ):
            await older.call(Older.echo, "tea", timeout_s=TIMEOUT_S)
        with pytest.raises(ProcessError, match=r"Older.later\(\) was answered with 7: .*list"):
            await older.call(Older.later, timeout_s=TIMEOUT_S)
        with pytest.raises(TypeError, match=r"Shop.echo\(items, name\): "):
            await Client[Shop](child).call(Shop.echo, [object()], "", timeout_s=TIMEOUT_S)  # type: ignore[arg-type]
        with pytest.raises(RemoteError, match="ValueError: sold out"):
            await Client[Shop](child).call(Shop.fails, "sold out", timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("entry", [SYNC, ASYNC])
async def test_a_call_that_is_cancelled_is_cancelled_in_the_process(
    tmp_path: Path, entry: str
) -> None:
    async with child_of(entry, tmp_path) as child:
        shop, note = Client[Shop](child), tmp_path / "note"
        waiting = asyncio.create_task(shop.call(Shop.waits, str(note), timeout_s=TIMEOUT_S))
        await until(note.exists)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert await shop.call(Shop.later, timeout_s=TIMEOUT_S) == 7
        await until(lambda: note.read_text() == "cancelled")


async def test_an_answer_may_come_in_parts(tmp_path: Path) -> None:
    async with child_of(ASYNC, tmp_path) as child:
        parts = StreamClient[Shop](child).stream(Shop.counts, 3, idle_timeout_s=TIMEOUT_S)
        assert [(i.counts, bytes(view_of(i.values or b""))) async for i in parts] == [
            ((0,), b""),
            ((1,), b"x"),
            ((2,), b"xx"),
        ]


async def test_a_blocked_process_says_that_it_has_a_call_that_is_answered_at_once(
    tmp_path: Path,
) -> None:
    async with child_of(ASYNC, tmp_path) as child:
        shop, note = Client[Shop](child), tmp_path / "note"
        await shop.call(Shop.blocks, str(note), timeout_s=TIMEOUT_S)
        later = asyncio.create_task(shop.call(Shop.later, timeout_s=TIMEOUT_S))
        note.touch()
        assert await later == 7


class Shopkeeper(Till):
    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.has_given_up = asyncio.Event()

    async def price(self, item: Item) -> float:
        if item.kind is Kind.ODD:
            raise ValueError("nobody buys this")
        if item.counts:
            return "x" * item.counts[0]  # type: ignore[return-value]
        return len(view_of(item.values or b"")) / 2

    async def waits(self) -> None:
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.has_given_up.set()


@pytest.mark.parametrize("is_thread", [False, True])
async def test_a_child_calls_the_main_process(tmp_path: Path, is_thread: bool) -> None:
    async with child_of(ASKING, tmp_path) as child:
        clerk = Client[Clerk](child)
        plain = Item(Kind.PLAIN, values=b"abc")
        with pytest.raises(RemoteError, match="answers no calls, not even 'price'"):
            await clerk.call(Clerk.asks, plain, is_thread, timeout_s=TIMEOUT_S)
        child.on_call = LoopAnswering(Shopkeeper()).answer
        assert await clerk.call(Clerk.asks, plain, is_thread, timeout_s=TIMEOUT_S) == 1.5
        huge = Item(Kind.PLAIN, (MAX_HEADER_BYTES,))
        with pytest.raises(RemoteError, match="send bulk data as buffers"):
            await clerk.call(Clerk.asks, huge, is_thread, timeout_s=TIMEOUT_S)
        with pytest.raises(RemoteError, match="ValueError: nobody buys this"):
            await clerk.call(Clerk.asks, Item(Kind.ODD), is_thread, timeout_s=TIMEOUT_S)


@pytest.mark.parametrize("end", ["cancelled", "killed"])
async def test_a_call_that_a_child_gives_up_or_dies_in_is_cancelled(
    tmp_path: Path, end: str
) -> None:
    async with child_of(ASKING, tmp_path) as child:
        keeper = Shopkeeper()
        child.on_call = LoopAnswering(keeper).answer
        asking = asyncio.create_task(
            Client[Clerk](child).call(Clerk.asks_in_vain, timeout_s=TIMEOUT_S)
        )
        async with asyncio.timeout(TIMEOUT_S):
            await keeper.waiting.wait()
            if end == "cancelled":
                asking.cancel()
            else:
                child.signal(signal.SIGKILL)
            await keeper.has_given_up.wait()
        await asyncio.wait({asking})


def test_an_annotation_that_cannot_travel_names_its_method() -> None:
    def opened(path: Path) -> int:
        raise NotImplementedError

    with pytest.raises(TypeError, match=r"opened\(path\) returns .*int.*: expected an Answer"):
        method_of(opened)
