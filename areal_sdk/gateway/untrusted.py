"""Two guards against what callers send: large texts leave the event loop, deep JSON is refused.

Work on a large text would hold up all other requests, so a thread does it. orjson reads 1024 levels of
JSON and writes 254: a value deeper than `MAX_DEPTH` would fail later, in a trace, a prompt or a digest.
"""

import asyncio
import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import orjson

T = TypeVar("T")

LARGE = 32_768
"""Characters or bytes. The loop does less at once in milliseconds; a thread costs a tenth of one."""

_NUM_THREADS = 2
"""So many large requests are prepared at once: each may take a hundred bytes of memory a byte of text."""

_TRIMMED_FROM = 1_000_000


def is_small(size: int) -> bool:
    """Whether the loop itself may do the work on so many characters or bytes."""
    return size <= LARGE


class LargeWork:
    """Threads for large requests. Tokenizers release the interpreter while they encode."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="large-request")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """The result of `work`, done here where `size` is small and in a thread where it is large."""
        if is_small(size):
            return work()
        loop = asyncio.get_running_loop()
        if size < _TRIMMED_FROM:
            return await loop.run_in_executor(self._threads, work)
        return await loop.run_in_executor(self._threads, lambda: _and_trim(work))

    def close(self) -> None:
        """Begin nothing more. What runs ends by itself."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _and_trim(work: Callable[[], T]) -> T:
    try:
        return work()
    finally:
        _give_memory_back()


def _give_memory_back() -> None:
    """Without this glibc keeps what the largest request needed for as long as the process lives."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


MAX_DEPTH = 200
"""Levels of a caller's value. The rest up to 254 is for the objects that hold the value."""

_WRITTEN_DEPTH = 254


def loads(text: bytes | str) -> Any:
    """The value; `orjson.JSONDecodeError` where it is not JSON or too deep.

    >>> loads("[1, 2]")
    [1, 2]
    """
    value = orjson.loads(text)
    if len(text) <= 2 * MAX_DEPTH:  # each level is opened and closed
        return value
    opened = (
        text.count(b"[") + text.count(b"{")
        if isinstance(text, bytes)
        else text.count("[") + text.count("{")
    )
    if opened > MAX_DEPTH and is_too_deep(value):
        raise orjson.JSONDecodeError(f"it is nested deeper than {MAX_DEPTH} levels", "", 0)
    return value


def is_too_deep(value: Any) -> bool:
    """Whether a JSON value has more than `MAX_DEPTH` levels."""
    for _ in range(_WRITTEN_DEPTH - MAX_DEPTH):
        value = [value]
    try:
        orjson.dumps(value)
    except orjson.JSONEncodeError:
        return True
    return False
