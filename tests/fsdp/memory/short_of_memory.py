"""A preset whose ranks get no more than a little memory after their model is loaded."""

import resource
from pathlib import Path

from areal_sdk.algorithms import Algorithm
from areal_sdk.algorithms.presets import grpo

ROOM_BYTES = 64 << 20


def short_of_memory() -> Algorithm:
    """GRPO, made by a process that may then take `ROOM_BYTES` of address space more."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + ROOM_BYTES, resource.RLIM_INFINITY))
    return grpo()
