"""The memory that torch takes on the CPU while something runs, for comparison with predictions."""

import gc
from collections.abc import Callable
from dataclasses import dataclass

from torch.profiler import ProfilerActivity, profile


@dataclass(frozen=True, slots=True)
class MeasuredBytes:
    """Bytes of new tensors, and of the buffers of operators."""

    peak: int
    left: int
    """Bytes that are still taken at the end."""
    largest: int
    """Bytes of the largest allocation."""


def measure_bytes(action: Callable[[], object]) -> MeasuredBytes:
    """Run `action`; every allocation counts when it is made, to the byte.

    A file that is mapped into memory is no allocation, and neither are the permanent buffers of matrix libraries.
    Garbage is collected first, because its end would count as memory that `action` gives back.
    """
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            result = action()
    finally:
        if was_enabled:
            gc.enable()
    assert recorded.profiler is not None
    assert recorded.profiler.kineto_results is not None
    events = recorded.profiler.kineto_results.events()
    changes = [(event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]"]
    total = peak = largest = 0
    for _, num_bytes in sorted(changes, key=lambda change: change[0]):
        total += num_bytes
        peak, largest = max(peak, total), max(largest, num_bytes)
    del result  # what is returned is still taken
    return MeasuredBytes(peak, total, largest)
