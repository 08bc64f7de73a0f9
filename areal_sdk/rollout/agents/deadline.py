"""A deadline for user code that holds even if the code ignores its cancellation."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from areal_sdk.errors import ArealError

T = TypeVar("T")
logger = logging.getLogger(__name__)

CANCEL_GRACE_S = 2.0
"""Seconds that cancelled user code may take to clean up before it is left behind."""

INTERRUPTED = "Ctrl-C"
"""The message of the `CancelledError` that Ctrl-C throws into user code. `within` passes this error on."""


async def within(coroutine: Coroutine[Any, Any, T], timeout_s: float, *, what: str) -> T:
    """The coroutine's result; DeadlinePassedError after `timeout_s`, even if it ignores cancellation.

    The coroutine runs as a task of its own. A `TimeoutError` that it raises is passed on; only this
    deadline raises `DeadlinePassedError`. Its own `CancelledError` becomes
    `CancelledByItselfError`, since a `CancelledError` here would cancel the caller. A coroutine that
    survives its cancellation is left behind and named in the log, so that it does not hold the run.
    """
    task = asyncio.create_task(coroutine, name=what)
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout_s)
    except asyncio.CancelledError:
        await _end(task, what)
        raise
    if not done:
        await _end(task, what)
        raise DeadlinePassedError(f"{what}: no result within {timeout_s:g} s")
    try:
        return task.result()
    except asyncio.CancelledError as exc:
        if exc.args == (INTERRUPTED,):
            raise
        raise CancelledByItselfError(
            "a CancelledError of its own ended it: catch it where a cancelled task is awaited"
        ).with_traceback(exc.__traceback__) from None


class DeadlinePassedError(ArealError):
    """The deadline of `within` passed, as opposed to a `TimeoutError` that the code inside raised.

    The caller of `within` catches it, and raises a `DeadlineError` that names the setting.
    """


class CancelledByItselfError(ArealError):
    """The code inside `within` raised a `CancelledError`, though its caller did not cancel it."""


async def _end(task: asyncio.Task[Any], what: str) -> None:
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=CANCEL_GRACE_S)
    if done:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("%s raised while it was being cancelled: %r", what, error)
        return
    logger.warning("%s ignores cancellation: it is left behind and may go on running", what)
    _left_behind.add(task)  # or it would be collected while it runs
    task.add_done_callback(_left_behind.discard)


_left_behind: set[asyncio.Task[Any]] = set()
