"""The memory of processes: what a family uses, what this machine has (on Linux only), and errors of too little; shorter
pauses of Python's garbage collector."""

import contextlib
import gc
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from areal_sdk.process.family import members

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the memory limit of a container, one for each version of cgroups."""
MEMORY_SHORT = re.compile(
    r"out of memory|OutOfMemory|an(?:'|no)t allocate memory|ALLOC_FAILED|bad_alloc"
)
"""The words of libraries whose allocation failed, on a GPU or on the CPU."""


def is_memory_short(error: BaseException) -> bool:
    """Whether an allocation failed. torch raises a plain RuntimeError for one on the CPU.

    >>> is_memory_short(RuntimeError("CUDA error: out of memory")), is_memory_short(ValueError("out of memory"))
    (True, False)
    """
    is_technical = isinstance(error, (RuntimeError, OSError))
    return isinstance(error, MemoryError) or (
        is_technical and bool(MEMORY_SHORT.search(str(error)))
    )


def used_mb(family: str) -> float:
    """MB of memory that the members of a family have to themselves; pages of files on disk are not counted."""
    return sum(_own_kb(pid) for pid in members(family)) / 1024


def machine_mb() -> int | None:
    """MB of memory of this machine, or of the container around this process; None if it is not known.

    >>> (machine_mb() or 1) > 0
    True
    """
    found = []
    with contextlib.suppress(OSError, ValueError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max": no limit
            found.append(int(Path(path).read_text(encoding="utf-8")))
    return min(found) >> 20 if found else None


def free_mb() -> int | None:
    """MB of memory that this machine can still give; None if it is not known."""
    with contextlib.suppress(OSError, StopIteration):
        with open("/proc/meminfo", encoding="utf-8") as lines:
            found = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(found.split()[1]) >> 10
    return None


def _own_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0  # it has ended
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))


@contextmanager
def no_collections() -> Iterator[None]:
    """Collect nothing inside this block, and never examine the objects that are made there.

    For imports: those of torch make a million objects that stay, and looking for garbage among them
    takes a tenth of the time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def short_collections() -> Iterator[None]:
    """Let collections inside this block look only at objects that are younger than the block.

    Python collects in the event loop's thread. A look at all modules, tokenizers and connections of a
    process takes a tenth of a second, and every request waits for it.
    """
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
