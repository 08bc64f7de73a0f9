"""The process of a tracker: `python -m areal_sdk_trackers.process LIBRARY` reads events from stdin.

Events are lines of JSON. The end of the input, without the event `end`, means that the run was killed.
"""

import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

TRIES_S = (0.0, 1.0, 5.0)
"""Waits before each attempt at an event: a server may be away for a moment."""
SOME_LOST = 3
"""The exit code if events were given up."""


class Backend(Protocol):
    """The methods that bring the events of a run to one library."""

    def metrics(self, *, step: int, values: dict[str, float]) -> None: ...

    def evaluation(self, *, name: str, split: str, step: int, values: dict[str, float]) -> None: ...

    def samples(self, *, split: str, step: int, rows: list[dict[str, Any]]) -> None: ...

    def end(self, *, values: dict[str, float] | None) -> None:
        """`values` are the run's summary; None if the run was killed."""


def main(library: str) -> int:
    backend: Backend | None = None
    num_lost = 0
    for line in sys.stdin.buffer:
        event = json.loads(line)
        kind = event.pop("kind")
        if kind == "begin":
            module = importlib.import_module(f"areal_sdk_trackers.to_{library}")
            backend = module.begin(**event)
            continue
        assert backend is not None, "the first event begins the run"
        num_lost += not _attempt(getattr(backend, kind), event)
        if kind == "end":
            return SOME_LOST if num_lost else 0
    if backend is not None:
        backend.end(values=None)
    return 0


def _attempt(take: Callable[..., None], event: dict[str, Any]) -> bool:
    for wait_s in TRIES_S:
        time.sleep(wait_s)
        try:
            take(**event)
        except Exception:  # noqa: BLE001 - the log has it, and the exit code says that it was
            traceback.print_exc()
        else:
            return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
