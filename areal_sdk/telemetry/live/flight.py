"""The flight record of a run: its state every second of the last minutes, to be read after whatever end.

The file is a ring of slots that are written in place. So its size is bounded, it has its room from the start, even on
a disk that fills up later, and a process that is killed loses nothing that it had written.
"""

import math
import os
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson

from areal_sdk.telemetry.files import private, to_json
from areal_sdk.telemetry.live.terminal import RunStatus

FLIGHT = "flight.jsonl"
SLOT, NUM_SLOTS = 2048, 256
"""Bytes of a row, and number of rows: 512 KiB, four minutes."""
_LONG = ("said", "processes", "waits")
"""Parts that are left out, one after the other, of a row that does not fit its slot."""


class FlightRecorder:
    """Writes the flight record of one run. It never fails: a run goes on without it."""

    def __init__(self, path: Path) -> None:
        self._num, self._noted_at = 0, -math.inf
        self._said: deque[str] = deque(maxlen=6)
        self._file = -1
        with suppress(OSError, AttributeError):  # macOS cannot take room ahead
            self._file = private(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC)
            os.posix_fallocate(self._file, 0, SLOT * NUM_SLOTS)

    @property
    def is_due(self) -> bool:
        return time.monotonic() - self._noted_at >= 1.0

    def hear(self, text: str) -> None:
        """Keep a line that was shown to the user. A thread may call this while the event loop is blocked, to say so."""
        self._said.append(text[:240])
        if self.is_due:
            self._write({})

    def note(self, status: RunStatus, parts: Mapping[str, Any], *, ended: str = "") -> None:
        """Write the state of the run now. `parts` has figures by the name of the part that reported them."""
        books = status.ledger
        # A throttle is no wait to tell of: a healthy run has one.
        waits = [
            [one["name"][:120], one["waited_s"]] for one in status.waits if not one["is_throttle"]
        ]
        self._write(
            {
                "step": status.step,
                "version": status.version,
                "doing": status.note,
                "waits": waits[:6],
            }
            | {name: books.get(name, 0) for name in ("running", "buffered", "trained")}
            | {"dropped": sum(books.get("dropped", {}).values()), **parts}
            | ({"ended": ended[:600]} if ended else {})
        )

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, row: dict[str, Any]) -> None:
        self._noted_at = time.monotonic()
        said, self._said = [*self._said], deque(maxlen=6)
        data = to_json(row := {"time": time.time(), **row, "said": said})
        for name in _LONG:
            if len(data) >= SLOT and row.pop(name, None):
                data = to_json(row)
        with suppress(OSError):
            slot = data[: SLOT - 1].ljust(SLOT - 1) + b"\n"
            os.pwrite(self._file, slot, self._num % NUM_SLOTS * SLOT)
            self._num += 1


def read_flight(run: Path) -> list[dict[str, Any]]:
    """The rows of the flight record of the run in `run`, oldest first; none if there is no record."""
    rows = []
    with suppress(FileNotFoundError):
        for line in (run / FLIGHT).read_bytes().split(b"\n"):
            with suppress(orjson.JSONDecodeError):  # a slot that was never written, or half of one
                rows.append(orjson.loads(line.strip(b" \0")))
    return sorted(rows, key=lambda row: row["time"])
