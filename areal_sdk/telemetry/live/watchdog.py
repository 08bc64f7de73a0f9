"""Names the coroutine that blocks the event loop, while it blocks.

One blocking call in one agent (`time.sleep`, `requests.get`, a long loop) stops the gateway and every other episode.
The watchdog is a thread that asks the loop for a sign of life. If none comes, it looks at the stack of the loop's
thread.

A blocking client of the gateway deadlocks: it waits for the gateway, which runs on the loop that it blocks. Only the
user can end this, so the warning says so.
"""

import asyncio
import inspect
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Self

from areal_sdk.errors.blame import running_users_line

_log = logging.getLogger("areal_sdk.watchdog")

_IN_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_IDLE_FUNCTIONS = {("selectors.py", "select"), ("base_events.py", "_run_once")}
_READS_SOCKET = {("socket.py", "readinto"), ("ssl.py", "read"), ("sync.py", "read")}

REMIND_AFTER_S = 10.0
"""Time until the first reminder of a lasting blockage. The time doubles with each reminder."""


@dataclass(frozen=True, slots=True)
class Blockage:
    """A period without a tick of the event loop, and the code that blocked it."""

    coroutine: str
    """Qualified name of the user's innermost function; else of the innermost coroutine (or callback)."""
    place: str
    """`file:line` where that function makes the blocking call."""
    calls: str
    """The innermost function on the stack, which `coroutine` called; the name of `coroutine` if it blocks by itself."""
    task: str
    blocked_s: float
    """Seconds of the blockage when it was noticed; it may have lasted longer."""
    stack: str
    is_users: bool = True
    """Whether the code is the user's."""
    awaits_answer: bool = False
    """Whether the code waits for a socket. A wait for the gateway of this run never ends."""
    is_reminder: bool = False
    """Whether the same call was reported before, and still blocks."""

    def __str__(self) -> str:
        inside = "" if self.calls == self.coroutine else f", inside {self.calls}"
        what = (
            f"{self.coroutine} ({self.place}{inside}; task {self.task}) has blocked the event loop "
            f"for {self.blocked_s:.1f} s: nothing else runs meanwhile."
        )
        if not self.is_users:
            return what
        if self.awaits_answer:
            return (
                f"{what} If it waits for the model's answer it waits for ever, because the gateway "
                "runs on this event loop: use AsyncOpenAI, or write the agent as a plain `def`, or "
                "set rollout.workers = 1. Ctrl-C ends the run"
            )
        return (
            f"{what} Use an async call or asyncio.to_thread, or play agents in processes of their "
            "own: rollout.workers = 2"
        )


def log_blockage(blockage: Blockage) -> None:
    """Log a blockage, as a warning if the code is the user's and else as info; its stack on debug level. The default report."""
    _log.log(logging.WARNING if blockage.is_users else logging.INFO, "%s", blockage)
    _log.debug("%s", blockage.stack)


class Watchdog:
    """Watches the running loop inside `async with`. Reports each function once, and reminds of a user's that still blocks.

    The function is blamed if the loop's thread computed for `threshold_s`, or if the loop did not tick for
    `waiting_s`: on a busy machine a shorter pause may be the fault of no code.
    """

    def __init__(
        self,
        *,
        threshold_s: float = 0.5,
        waiting_s: float = 2.0,
        report: Callable[[Blockage], None] = log_blockage,
    ) -> None:
        self.threshold_s = threshold_s
        self.waiting_s = waiting_s
        self.longest_s = 0.0
        """The longest period without a tick."""
        self._report = report
        self._reported: set[CodeType] = set()
        self._idle_code: CodeType | None = None
        """Code of the Python function that runs a loop written in C. It is the innermost function while the loop waits."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._idle_code = _caller_of_task(asyncio.current_task())
        arguments = (loop, threading.get_ident(), _cpu_clock())
        self._thread = threading.Thread(
            target=self._watch, args=arguments, name="watchdog", daemon=True
        )
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()  # the thread ends by itself

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int, clock: int | None) -> None:
        while not self._stop.wait(self.threshold_s / 2):
            ticked = threading.Event()
            asked, computed = time.monotonic(), _cpu_seconds(clock)
            try:
                loop.call_soon_threadsafe(ticked.set)
            except RuntimeError:
                return  # the loop is closed
            remind_after_s = REMIND_AFTER_S
            patience_s = self.threshold_s
            while not ticked.wait(patience_s):
                if self._stop.is_set() or loop.is_closed():
                    return
                patience_s = min(0.1, self.threshold_s)
                blocked_s = time.monotonic() - asked
                if (
                    blocked_s >= self.waiting_s
                    or _cpu_seconds(clock) - computed >= self.threshold_s
                ):
                    is_reminder = blocked_s >= remind_after_s
                    if is_reminder:
                        remind_after_s = 2 * blocked_s
                    self._examine(loop, thread, blocked_s, is_reminder=is_reminder)
            self.longest_s = max(self.longest_s, time.monotonic() - asked)

    def _examine(
        self,
        loop: asyncio.AbstractEventLoop,
        thread: int,
        blocked_s: float,
        *,
        is_reminder: bool = False,
    ) -> None:
        innermost = sys._current_frames().get(thread)
        if innermost is None or _is_idle(innermost) or innermost.f_code is self._idle_code:
            return  # it has just ticked, or the machine gives it no time: no code is to blame
        users = running_users_line(innermost)
        blocking = _blocking_frame(innermost)
        place = f"{blocking.f_code.co_filename}:{blocking.f_lineno}"
        if users is not None:
            blocking, line = users
            place = f"{blocking.f_code.co_filename}:{line}"
        was_reported = blocking.f_code in self._reported
        if was_reported and (users is None or not is_reminder):
            return
        self._reported.add(blocking.f_code)
        task = asyncio.current_task(loop)
        blockage = Blockage(
            coroutine=blocking.f_code.co_qualname,
            place=place,
            calls=innermost.f_code.co_qualname,
            task=task.get_name() if task is not None else "none",
            blocked_s=blocked_s,
            stack="".join(traceback.format_stack(innermost)),
            is_users=users is not None,
            awaits_answer=_function(innermost) in _READS_SOCKET,
            is_reminder=was_reported,
        )
        self._report(blockage)


def _blocking_frame(innermost: FrameType) -> FrameType:
    """The innermost coroutine, which should have awaited; else the callback's own frame."""
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_code.co_flags & _IN_COROUTINE:
            return frame
        if frame.f_back is not None and str(frame.f_back.f_globals.get("__name__", "")).startswith(
            "asyncio."
        ):
            return frame
        frame = frame.f_back
    return innermost


def _caller_of_task(task: "asyncio.Task[object] | None") -> CodeType | None:
    """The function that calls the current task: with asyncio a method of the loop, with uvloop the function that runs the loop."""
    frame: FrameType | None = getattr(task and task.get_coro(), "cr_frame", None)
    caller = frame and frame.f_back
    if caller is None or _function(caller) == ("events.py", "_run"):
        return None  # asyncio's: `_is_idle` knows its functions
    return caller.f_code


def _is_idle(frame: FrameType) -> bool:
    return _function(frame) in _IDLE_FUNCTIONS


def _function(frame: FrameType) -> tuple[str, str]:
    return frame.f_code.co_filename.rpartition("/")[2], frame.f_code.co_name


def _cpu_clock() -> int | None:
    """The clock of this thread's CPU time, to be read from another; None on macOS."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return None
    return time.pthread_getcpuclockid(threading.get_ident())


def _cpu_seconds(clock: int | None) -> float:
    if clock is None:
        return 0.0
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0  # the thread has ended
