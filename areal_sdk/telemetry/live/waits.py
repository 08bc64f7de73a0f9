"""Named waits with deadlines, and a registry of those in progress.

Each process has one registry, on purpose: the signal handler and `live.json` must find every wait.
"""

import asyncio
import itertools
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from areal_sdk.errors import WaitTimeoutError


@dataclass(frozen=True, slots=True)
class Wait:
    """One wait in progress."""

    name: str
    """Text that says who waits for what: `"trainer: step 12"`."""
    since: float
    """`time.monotonic()` when the wait began."""
    timeout_s: float
    is_throttle: bool = False
    """Whether the wait keeps the rollouts from running too far ahead: a healthy run has one."""

    @property
    def waited_s(self) -> float:
        return time.monotonic() - self.since

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "waited_s": round(self.waited_s, 3),
            "timeout_s": self.timeout_s,
            "is_throttle": self.is_throttle,
        }


_AS_GOOD_AS_FOREVER_S = 7 * 86400.0
"""Length of a deadline from which it is not shown: a run that serves callers practically waits without one."""


def wait_length(waited_s: float, timeout_s: float) -> str:
    """The time that a wait has lasted, and the time that it may last.

    >>> wait_length(30.2, 600.0), wait_length(3.2, 5537.62), wait_length(9000.0, 30000.0)
    ('30 s of 600 s', '3 s of 92 min', '2.5 h of 8.3 h')
    """
    waited = _length(round(waited_s))
    return f"{waited} of {_length(timeout_s)}" if timeout_s < _AS_GOOD_AS_FOREVER_S else waited


def _length(seconds: float) -> str:
    if seconds < 1000.0:
        return f"{seconds:g} s" if seconds < 10.0 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200.0 else f"{seconds / 3600:.1f} h"


_current: dict[int, Wait] = {}
_elsewhere: dict[str, list[Wait]] = {}
"""The waits of other processes, as last reported."""
_ids = itertools.count()


@asynccontextmanager
async def waiting(
    name: str, *, timeout_s: float, slack_s: float = 0.0, is_throttle: bool = False
) -> AsyncIterator[None]:
    """Bound the awaits inside by `timeout_s`; after it, `WaitTimeoutError` names the wait.

    `slack_s` is for awaits that keep `timeout_s` themselves and have a better error: these extra seconds let them raise
    it. The list of waits does not show the extra seconds.
    """
    wait_id = next(_ids)
    _current[wait_id] = Wait(name, time.monotonic(), timeout_s, is_throttle)
    deadline = asyncio.timeout(timeout_s + slack_s)
    try:
        async with deadline:
            yield
    except TimeoutError as exc:
        if not deadline.expired():
            raise  # the deadline of an inner timeout
        raise WaitTimeoutError(
            f"waited {_length(timeout_s)} for {name}, and it did not happen"
        ) from exc
    finally:
        del _current[wait_id]


def current_waits() -> list[Wait]:
    """The waits in progress, the longest first. The name of a wait of another process begins with that process."""
    others = (wait for waits in _elsewhere.values() for wait in waits)
    return sorted([*_current.values(), *others], key=lambda wait: wait.since)


def note_waits(process: str, waits: Iterable[tuple[str, float, float]]) -> None:
    """Note all waits of another process, each as its name, its duration so far, and its deadline."""
    now = time.monotonic()
    noted = [Wait(f"{process}: {name}", now - lasted, within) for name, lasted, within in waits]
    if noted:
        _elsewhere[process] = noted
    else:
        _elsewhere.pop(process, None)


def describe_waits() -> str:
    """The waits in progress, and the current line of every task of the running loop."""
    lines = ["waiting for:"]
    for wait in current_waits():
        lines.append(f"  {wait_length(wait.waited_s, wait.timeout_s):>18}  {wait.name}")
    lines.append("tasks:")
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no loop runs in this thread
        tasks = set()
    lines += sorted(f"  {task.get_name()}: {_place(task)}" for task in tasks)
    return "\n".join(lines) + "\n"


@contextmanager
def waits_on_signal(number: int = signal.SIGUSR1) -> Iterator[None]:
    """Let `kill -USR1 <pid>` print `describe_waits()` to stderr within this block. Main thread only."""

    def report(_number: int, _frame: FrameType | None) -> None:
        sys.stderr.write(describe_waits())
        sys.stderr.flush()

    previous = signal.signal(number, report)
    try:
        yield
    finally:
        signal.signal(number, previous)


def _place(task: "asyncio.Task[Any]") -> str:
    """The line that the innermost awaited coroutine of `task` is at."""
    inner: Any = task.get_coro()
    while getattr(inner, "cr_await", None) is not None and hasattr(inner.cr_await, "cr_frame"):
        inner = inner.cr_await
    frame = getattr(inner, "cr_frame", None)
    name = getattr(inner, "__qualname__", repr(inner))
    if frame is None:
        return str(name)
    return f"{name} ({frame.f_code.co_filename}:{frame.f_lineno})"
