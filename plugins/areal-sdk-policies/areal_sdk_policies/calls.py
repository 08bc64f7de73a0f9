"""Calls to the engines or trainers of all policies at once."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

T = TypeVar("T")


async def together(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Make the calls side by side. If one fails, the others are cancelled, and its error is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            for call in calls:
                group.create_task(call)
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed


async def all_results(calls: Mapping[str, Coroutine[Any, Any, T]]) -> dict[str, T]:
    """The results by policy. If a call fails the others still end, so that no trainer is left in the middle."""
    results = await asyncio.gather(*calls.values(), return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return dict(zip(calls, results, strict=True))  # type: ignore[arg-type]


async def first_result(calls: Iterable[Coroutine[Any, Any, T]]) -> T:
    """The result of the first call that ends; the others are cancelled."""
    waiting = [asyncio.create_task(call) for call in calls]
    try:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for call in waiting:
            call.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
