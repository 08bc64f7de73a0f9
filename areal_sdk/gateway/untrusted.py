"""Guards against large requests: threads work on long texts, and too many or too deep values are refused.

Work on a long text in the event loop would delay all other requests. A thread does not help against many values,
because a JSON parser holds the interpreter until it has read everything: a text of 4 MB takes 4 ms, a million small
objects a tenth of a second. Deep values are refused because orjson reads 1024 levels of JSON but writes only 254. A
value deeper than `MAX_DEPTH` would fail later, in a trace, a prompt or a digest.
"""

import asyncio
import ctypes
import itertools
import re
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import orjson

from areal_sdk.tool_calls import MAX_DEPTH, is_too_deep

T = TypeVar("T")

LARGE = 32_768
"""Size, in characters or bytes, from which work goes to a thread. The loop does smaller work in milliseconds; a thread
costs a tenth of a millisecond."""

_NUM_THREADS = 2
"""Number of large requests that are prepared at once. Each may take a hundred bytes of memory per byte of text."""

_SHORT_TURN_S = 0.0005
"""Seconds that a thread keeps Python's lock while large requests are prepared: the event loop waits no longer for
its turn."""

_BYTES_OF_A_CONTAINER = 128

_TRIMMED_FROM = 1_000_000
"""Size of a request, in characters or bytes, from which its memory is given back to the system."""

_IDLE_S = 1.0
"""Seconds from the last request of at least `_TRIMMED_FROM` until memory is given back."""


def is_small(size: int) -> bool:
    """Whether work on `size` characters or bytes may be done in the event loop."""
    return size <= LARGE


def weight(raw: bytes, *, enough: int) -> int:
    """The bytes of JSON, and more for each object and list, since each takes work, however short it is.

    JSON with more than `enough` bytes weighs its bytes alone, because counting in megabytes takes milliseconds.
    """
    if len(raw) > enough:
        return len(raw)
    return len(raw) + _BYTES_OF_A_CONTAINER * (raw.count(b"{") + raw.count(b"["))


class LargeWork:
    """Threads for large requests. Tokenizers release the interpreter while they encode.

    Python code keeps the interpreter from the event loop for up to one switch interval whenever the loop
    reads or writes a socket. So while such threads work the interval is short.
    """

    _num_running = 0
    _usual_interval_s = 0.0

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="large-request")
        self._trimming: asyncio.TimerHandle | None = None

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """The result of `work`, which is done at once if `size` is small, and in a thread if it is large."""
        if is_small(size):
            return work()
        loop = asyncio.get_running_loop()
        try:
            with self._short_turns():
                return await loop.run_in_executor(self._threads, work)
        finally:
            if size >= _TRIMMED_FROM:
                self._trim_later(loop)

    def _trim_later(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give memory back once large requests have ceased for some time: allocation waits while that is done."""
        if self._trimming is not None:
            self._trimming.cancel()
        self._trimming = loop.call_later(_IDLE_S, self._trim)

    def _trim(self) -> None:
        self._trimming = None
        self._threads.submit(_give_memory_back)

    @classmethod
    @contextmanager
    def _short_turns(cls) -> Iterator[None]:
        """Shorten the interval while threads work. It belongs to the process, so all gateways of the process count
        together."""
        if not cls._num_running:
            cls._usual_interval_s = sys.getswitchinterval()
            sys.setswitchinterval(min(_SHORT_TURN_S, cls._usual_interval_s))
        cls._num_running += 1
        try:
            yield
        finally:
            cls._num_running -= 1
            if not cls._num_running:
                sys.setswitchinterval(cls._usual_interval_s)

    def close(self) -> None:
        """Begin no further work. Work that runs ends by itself."""
        if self._trimming is not None:
            self._trimming.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _give_memory_back() -> None:
    """Return free memory to the system. Without this call, glibc lets a gateway keep as much memory as its largest
    request needed."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


_LEAST_VALUES = 200_000
"""Number of values that any body may have, read in 10 ms. Metadata and schemas are in a body too,
whatever the context."""

_VALUES_A_TOKEN = 4

_MARK_OR_STRING = re.compile(rb'[\[{,]|"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)


def most_values(max_context: int) -> int:
    """A number of values that no body exceeds if it fits the context, since each value takes tokens."""
    return max(_LEAST_VALUES, _VALUES_A_TOKEN * max_context)


def has_more_values(raw: bytes, most: int) -> bool:
    """Whether JSON holds more than about `most` values. Text counts as one value, however long.

    >>> has_more_values(b'[1, 2, "[3, 4]"]', 3), has_more_values(b'[1, 2, 3, 4]', 3)
    (False, True)
    """
    if sum(_num_marks(raw, mark) for mark in (b",", b"[", b"{")) <= most:
        return False
    marks = (found for found in _MARK_OR_STRING.finditer(raw) if raw[found.start()] != _QUOTE)
    return next(itertools.islice(marks, most, None), None) is not None


def _num_marks(raw: bytes, mark: bytes) -> int:
    """The result of `raw.count(mark)`, counted a window at a time: a count in megabytes holds the
    interpreter for milliseconds."""
    return sum(raw.count(mark, begin, begin + LARGE) for begin in range(0, len(raw), LARGE))


_QUOTE = ord('"')


def loads(text: bytes | str) -> Any:
    """The value that a JSON text stands for. `orjson.JSONDecodeError` if the text is not JSON, or too deep.

    >>> loads("[1, 2]")
    [1, 2]
    """
    value = orjson.loads(text)
    if len(text) <= 2 * MAX_DEPTH:  # each level is opened and closed
        return value
    opened = (
        _num_marks(text, b"[") + _num_marks(text, b"{")
        if isinstance(text, bytes)
        else text.count("[") + text.count("{")
    )
    if opened > MAX_DEPTH and is_too_deep(value):
        raise orjson.JSONDecodeError(f"it is nested deeper than {MAX_DEPTH} levels", "", 0)
    return value
