"""The memory of processes: what a family uses, and what this machine has. Known on Linux only."""

import contextlib
import os
from pathlib import Path

from areal_sdk.process.family import members

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Files with the memory limit of a container, one for each version of cgroups."""


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


def _own_kb(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0  # it has ended
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
