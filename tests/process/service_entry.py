"""A contract, and the processes that the tests of services call by it."""

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import numpy as np

from areal_sdk.process import JSON, Channel
from areal_sdk.process.frames import view_of
from areal_sdk.process.services import (
    Answer,
    Answering,
    Bulk,
    MainClient,
    Service,
    Stream,
    answer_until_closed,
    at_once,
)
from areal_sdk.process.threads import BackgroundTasks

SYNC = "tests.process.service_entry:one_after_another"
ASKING = "tests.process.service_entry:ask"
ASYNC = "tests.process.service_entry:at_the_same_time"


class Kind(StrEnum):
    PLAIN = "plain"
    ODD = "odd"


@dataclass(frozen=True, slots=True)
class Item:
    kind: Kind
    counts: tuple[int, ...] = ()
    by_token: Mapping[int, float] = field(default_factory=dict)
    values: Bulk | None = None
    loss: float = 0.0


class Shop(Service, Protocol):
    def echo(
        self, items: list[Item], name: str | None
    ) -> Answer[tuple[list[Item], str | None]]: ...

    def doubled(self, item: Item) -> Answer[Item]: ...

    def fails(self, message: str) -> Answer[None]: ...

    def later(self) -> Answer[int]: ...

    def says(self, letter: int, times: int) -> Answer[str]: ...

    def says_later(self, letter: int, times: int) -> Answer[str]: ...

    def waits(self, note: str) -> Answer[None]: ...

    def counts(self, end: int) -> Stream[Item]: ...

    def blocks(self, note: str) -> Answer[None]: ...


class Older(Service, Protocol):
    """Another version of the contract."""

    def echo(self, items: str) -> Answer[str]: ...

    def closes(self) -> Answer[None]: ...

    def counts(self, end: Bulk) -> Stream[Item]: ...

    def later(self) -> Answer[list[str]]: ...


class Counter(Shop):
    def __init__(self) -> None:
        self._background = BackgroundTasks()

    def echo(self, items: list[Item], name: str | None) -> tuple[list[Item], str | None]:
        return items, name

    def doubled(self, item: Item) -> Item:
        assert item.values is not None
        array = np.frombuffer(view_of(item.values), np.float32)
        array *= 2  # what has arrived is writable
        return replace(item, values=array)

    def fails(self, message: str) -> None:
        raise ValueError(message)

    def later(self) -> Answer[int]:
        future: Future[int] = Future()
        future.set_result(7)
        return future

    def says(self, letter: int, times: int) -> str:
        return chr(letter) * times

    async def says_later(self, letter: int, times: int) -> str:
        return self.says(letter, times)

    def waits(self, note: str) -> Answer[None]:
        return self._wait(Path(note))

    def counts(self, end: int) -> Stream[Item]:
        stream: Stream[Item] = Stream()
        self._background.begin(self._count(stream, end), name="count")
        return stream

    @at_once
    def blocks(self, note: str) -> None:
        while not Path(note).exists():
            time.sleep(0.01)

    async def _wait(self, note: Path) -> None:
        note.touch()  # noqa: ASYNC240 - nothing else runs on this loop
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            note.write_text("cancelled")  # noqa: ASYNC240 - as above
            raise

    async def _count(self, stream: Stream[Item], end: int) -> None:
        for number in range(end):
            stream.send(Item(Kind.PLAIN, (number,), values=b"x" * number))
            await asyncio.sleep(0)
        stream.finish()


class Till(Service, Protocol):
    """The calls that a child makes of the main process."""

    def price(self, item: Item) -> Answer[float]: ...

    def waits(self) -> Answer[None]: ...


class Clerk(Service, Protocol):
    def asks(self, item: Item, is_thread: bool) -> Answer[float]: ...

    def asks_in_vain(self) -> Answer[None]: ...


class AskingClerk(Clerk):
    def __init__(self, channel: Channel) -> None:
        self._till = MainClient[Till](channel)

    async def asks(self, item: Item, is_thread: bool) -> float:
        if is_thread:
            return self._till.wait(Till.price, item, timeout_s=60)  # and blocks the event loop
        return await self._till.call(Till.price, item, timeout_s=60)

    async def asks_in_vain(self) -> None:
        await self._till.call(Till.waits, timeout_s=60)


def ask(channel: Channel, args: Mapping[str, JSON]) -> None:
    channel.ready()
    asyncio.run(answer_until_closed(channel, AskingClerk(channel)))


def one_after_another(channel: Channel, args: Mapping[str, JSON]) -> None:
    channel.ready()
    with asyncio.Runner() as runner:
        answering = Answering(Counter(), runner=runner)
        while True:
            if (request := channel.receive()) is not None:
                answering.answer(request)


def at_the_same_time(channel: Channel, args: Mapping[str, JSON]) -> None:
    channel.ready()
    asyncio.run(answer_until_closed(channel, Counter()))
