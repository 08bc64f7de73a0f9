"""The common parts of all conformance checks: their error, a deadline, and the lookup of plugin items."""

import asyncio
from collections.abc import Awaitable
from typing import Any, Literal, TypeVar

from areal_sdk.errors import ArealError
from areal_sdk.plugins import load_plugins

T = TypeVar("T")


class ConformanceError(ArealError, AssertionError):
    """A contract is broken; the message says which and how."""


def require(condition: bool, message: str) -> None:
    """Raise `ConformanceError` if a claim is false; unlike `assert`, also under `python -O`."""
    if not condition:
        raise ConformanceError(message)


async def in_time(answer: Awaitable[T], *, timeout_s: float, what: str) -> T:
    """The awaited result; ConformanceError if it takes longer than `timeout_s`."""
    deadline = asyncio.timeout(timeout_s)
    try:
        async with deadline:
            return await answer
    except TimeoutError:
        if not deadline.expired():
            raise
        raise ConformanceError(f"{what} took longer than {timeout_s:g} s") from None


Kind = Literal["reward", "env", "agent", "engine", "trainer", "dataset"]
"""Kind of an item, named as in the settings: `[reward.NAME]`, `[env.NAME]`, `[engine.NAME]`."""


def registered(kind: Kind, name: str, /, **options: object) -> Any:
    """The item that an installed plugin registered as `name`, with its options checked and set.

    Rewards, agents and datasets are ready to call. A call makes an environment; a call with a
    `TrainerSetup` makes a trainer. An engine is an instance. A wrong name or option raises the
    ConfigError that a run would raise.

    >>> [task.id for task in registered("dataset", "nobody_brings_this")("train")]
    Traceback (most recent call last):
        ...
    areal_sdk.errors.ConfigError: unknown dataset 'nobody_brings_this'; ...
    """
    configured: Any = load_plugins().configure(kind, name, options)
    return configured
