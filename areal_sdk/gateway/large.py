"""Work that grows with a caller's text: above a size it leaves the event loop, which serves everybody."""

import asyncio
import ctypes
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

LARGE = 32_768
"""Characters or bytes. The loop does less at once in milliseconds; a thread costs a tenth of one."""

_NUM_THREADS = 2
"""So many large requests are prepared at once: each may take a hundred bytes of memory a byte of text."""

_TRIMMED_FROM = 1_000_000


class LargeWork:
    """Threads for large requests. Tokenizers release the interpreter while they encode."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="large-request")

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """The result of `work`, done here where `size` is small and in a thread where it is large."""
        if size <= LARGE:
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
