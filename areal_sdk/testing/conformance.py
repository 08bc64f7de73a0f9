"""How a conformance check says what is wrong."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class ConformanceError(AssertionError):
    """A contract is broken; the message says which and how."""


def require(condition: bool, message: str) -> None:
    """Unlike `assert`, also under `python -O`."""
    if not condition:
        raise ConformanceError(message)


async def in_time(answer: Awaitable[T], *, timeout_s: float, what: str) -> T:
    """The answer, or the error that it did not come."""
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            return await answer
    except TimeoutError:
        if not deadline.expired():
            raise
        raise ConformanceError(f"{what} took longer than {timeout_s:g} s") from None
