"""The log of a process: a file that its output is appended to."""

import os
from pathlib import Path
from typing import BinaryIO

NUM_LAST_LINES = 20


def open_log(path: Path) -> BinaryIO:
    """The log at `path`, open for appending. Only this user may read it: what agents print is in it."""
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600))


def last_lines(log_path: Path, *, start: int = 0) -> tuple[str, ...]:
    """The end of a log that may be long or missing; nothing from before `start`."""
    try:
        with log_path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(start, size - 200 * NUM_LAST_LINES))
            text = log.read().decode(errors="replace")
    except OSError:
        return ()
    return tuple(line for line in text.splitlines() if line.strip())[-NUM_LAST_LINES:]
