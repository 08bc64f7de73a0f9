"""SIGTERM, which `kill` and batch systems send, ends a run the way Ctrl-C does."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[Callable[[], None]]:
    """While inside, SIGTERM does what Ctrl-C does. Who has a handler of their own keeps it.

    Call what it yields once the loop runs: by then asyncio has put its own handler in place.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield lambda: None
        return
    before = signal.getsignal(signal.SIGINT)
    is_deaf = before is signal.SIG_IGN  # a background job of a script: only SIGTERM ends it
    if is_deaf:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # what asyncio looks for
    handler = signal.getsignal(signal.SIGINT)

    def note_handler() -> None:
        nonlocal handler
        handler = signal.getsignal(signal.SIGINT)
        if is_deaf:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    def pass_on(_number: int, frame: FrameType | None) -> None:
        if callable(handler):
            handler(signal.SIGINT, frame)

    signal.signal(signal.SIGTERM, pass_on)
    try:
        yield note_handler
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if is_deaf:
            signal.signal(signal.SIGINT, before)
