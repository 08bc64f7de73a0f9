"""Waiting for something real that announces nothing, with a deadline."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], *, timeout_s: float = 120.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - the state of another process, and of its watcher
            await asyncio.sleep(0.02)
