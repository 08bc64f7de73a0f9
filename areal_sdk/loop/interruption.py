"""Ctrl-C while an agent blocks the event loop.

asyncio hears Ctrl-C in the loop's next round, and an agent that waits for the gateway with a client
that is not async leaves none to come. So the blocking call ends first, as a cancelled agent does:
the run then unwinds as it always would.
"""

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from areal_sdk.rollout.agents import is_playing
from areal_sdk.rollout.deadline import INTERRUPTED
from areal_sdk.stacks import running_users_line


@contextmanager
def blocking_calls_end() -> Iterator[Callable[[], None]]:
    """While inside, Ctrl-C also ends the call of an agent's that blocks the loop.

    Call what it yields once the loop runs: by then asyncio has put its own handler in place.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield lambda: None  # who has a handler of their own keeps it
        return

    def install() -> None:
        loop, asyncios = asyncio.get_running_loop(), signal.getsignal(signal.SIGINT)

        def interrupt(number: int, frame: FrameType | None) -> None:
            if callable(asyncios):
                asyncios(number, frame)  # cancels `main`; the second raises KeyboardInterrupt
            if frame is not None and running_users_line(frame) is not None:
                _cancel_agents(loop)
                raise asyncio.CancelledError(INTERRUPTED)

        signal.signal(signal.SIGINT, interrupt)

    try:
        yield install
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _cancel_agents(loop: asyncio.AbstractEventLoop) -> None:
    """Those yet to begin would block the loop one after the other before `main` can unwind."""
    for task in asyncio.all_tasks(loop):
        if is_playing(task):
            task.cancel(INTERRUPTED)
