"""Names the coroutine that blocks the event loop, while it does.

One blocking call in one agent (`time.sleep`, `requests.get`, a long loop) stops the gateway and
every other episode. The watchdog is a thread that asks the loop for a sign of life and, when none
comes, looks at what the loop's thread is doing.
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
from types import CodeType, FrameType, TracebackType
from typing import Self

_log = logging.getLogger("areal_sdk.watchdog")

_IN_COROUTINE = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
_IDLE_FUNCTIONS = {("selectors.py", "select"), ("base_events.py", "_run_once")}


@dataclass(frozen=True, slots=True)
class Blockage:
    """The event loop did not tick for `blocked_s`, and this is what it was doing."""

    coroutine: str
    """Qualified name of the innermost coroutine on the stack (of a callback, if there is none)."""
    place: str
    """`file:line` in it where the blocking call is made."""
    calls: str
    """The innermost function it had called; the same name if it blocks by itself."""
    task: str
    blocked_s: float
    """When it was noticed; it may have lasted longer."""
    stack: str

    def __str__(self) -> str:
        inside = "" if self.calls == self.coroutine else f", inside {self.calls}"
        return (
            f"{self.coroutine} ({self.place}{inside}; task {self.task}) has blocked the event loop "
            f"for {self.blocked_s:.1f} s: nothing else runs meanwhile. Use an async call or "
            "asyncio.to_thread, or play agents in processes of their own: rollout.workers = 2"
        )


def log_blockage(blockage: Blockage) -> None:
    """The default report: one warning, the stack on debug level."""
    _log.warning("%s", blockage)
    _log.debug("%s", blockage.stack)


class Watchdog:
    """Watches the running loop inside `async with`. Reports once for each place in the code."""

    def __init__(
        self, *, threshold_s: float = 0.5, report: Callable[[Blockage], None] = log_blockage
    ) -> None:
        self.threshold_s = threshold_s
        self.longest_s = 0.0
        """The longest that the loop went without a tick."""
        self._report = report
        self._reported: set[CodeType] = set()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        arguments = (loop, threading.get_ident())
        self._thread = threading.Thread(
            target=self._watch, args=arguments, name="watchdog", daemon=True
        )
        self._thread.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()  # the thread ends by itself: nobody waits for it

    def _watch(self, loop: asyncio.AbstractEventLoop, thread: int) -> None:
        while not self._stop.wait(self.threshold_s / 2):
            ticked = threading.Event()
            asked = time.monotonic()
            try:
                loop.call_soon_threadsafe(ticked.set)
            except RuntimeError:
                return  # the loop is closed
            if not ticked.wait(self.threshold_s):
                self._examine(loop, thread, time.monotonic() - asked)
                while not ticked.wait(0.1):
                    if self._stop.is_set() or loop.is_closed():
                        return
            self.longest_s = max(self.longest_s, time.monotonic() - asked)

    def _examine(self, loop: asyncio.AbstractEventLoop, thread: int, blocked_s: float) -> None:
        innermost = sys._current_frames().get(thread)
        if innermost is None or _is_idle(innermost):
            return  # it has just ticked, or the machine gives it no time: no code is to blame
        blocking = _blocking_frame(innermost)
        if blocking.f_code in self._reported:
            return
        self._reported.add(blocking.f_code)
        task = asyncio.current_task(loop)
        blockage = Blockage(
            coroutine=blocking.f_code.co_qualname,
            place=f"{blocking.f_code.co_filename}:{blocking.f_lineno}",
            calls=innermost.f_code.co_qualname,
            task=task.get_name() if task is not None else "none",
            blocked_s=blocked_s,
            stack="".join(traceback.format_stack(innermost)),
        )
        self._report(blockage)


def _blocking_frame(innermost: FrameType) -> FrameType:
    """The innermost coroutine, which should have awaited; else the callback's own frame."""
    frame: FrameType | None = innermost
    while frame is not None:
        if frame.f_code.co_flags & _IN_COROUTINE:
            return frame
        if frame.f_back is not None and _is_asyncio(frame.f_back):
            return frame
        frame = frame.f_back
    return innermost


def _is_idle(frame: FrameType) -> bool:
    name = frame.f_code.co_filename.rpartition("/")[2]
    return (name, frame.f_code.co_name) in _IDLE_FUNCTIONS


def _is_asyncio(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("asyncio.")
