"""Waits for conditions that have no event: another process's state, a file, a counter."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 120.0
"""Deadline of a wait: generous, since the machine may be busy. A test that passes never reaches it."""


async def until(
    is_so: Callable[[], object], *tasks: "asyncio.Task[Any]", timeout_s: float = PATIENCE_S
) -> None:
    """Wait for the condition. A task of `tasks` that ends first fails the test with its result."""
    async with asyncio.timeout(timeout_s):
        while not is_so():
            for task in tasks:
                assert not task.done(), task.result()
            await asyncio.sleep(0.002)


def wait_until(is_so: Callable[[], object], *, timeout_s: float = PATIENCE_S) -> None:
    """Wait for the condition in a test without an event loop."""
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(0.01)
