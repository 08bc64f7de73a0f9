"""The link to a tracker's process: a bounded queue, so that a slow or lost tracker holds up nothing."""

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

logger = logging.getLogger("areal_sdk.trackers")

MAX_WAITING = 1000
"""Maximum number of events that wait for a tracker slower than the run. Later ones are left out."""

Event = Mapping[str, Any]


class Link:
    """Sends events to a process that imports the library. Its failures are said once, never raised.

    The process has a session of its own: Ctrl-C ends the run, which then ends the tracker.
    """

    def __init__(self, library: str, *, log: Path, finish_s: float) -> None:
        self._library = library
        self._log = log
        self._finish_s = finish_s
        self._waiting: queue.Queue[Event] = queue.Queue(MAX_WAITING)
        self._num_left_out = 0
        self._is_lost = threading.Event()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "areal_sdk_trackers.process", library],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        self._feeder = threading.Thread(
            target=self._feed, args=(self._process.stdin,), name=f"tracker {library}", daemon=True
        )
        self._feeder.start()

    def send(self, event: Event) -> None:
        """Returns at once."""
        if self._is_lost.is_set():
            return
        try:
            self._waiting.put_nowait(event)
        except queue.Full:
            self._num_left_out += 1
            if self._num_left_out == 1:
                logger.warning(
                    "tracker %s is slower than the run: what does not fit its queue of %d events is "
                    "left out; log: %s",
                    self._library,
                    MAX_WAITING,
                    self._log,
                )

    def close(self, last: Event) -> None:
        """Send the last event, and wait for the process; after `finish_s` it is killed."""
        deadline = time.monotonic() + self._finish_s
        try:
            self._waiting.put(last, timeout=self._finish_s)
            self._process.wait(max(0.1, deadline - time.monotonic()))
        except (queue.Full, subprocess.TimeoutExpired):
            self._lose(f"did not finish within {self._finish_s:g} s")
        finally:  # also after a second Ctrl-C
            self._kill()
            self._feeder.join(5.0)
        if self._process.returncode not in (0, -signal.SIGKILL):
            self._lose(f"failed (exit code {self._process.returncode})")
        if self._num_left_out:
            logger.warning("tracker %s: %d events were left out", self._library, self._num_left_out)

    def _feed(self, stdin: IO[bytes]) -> None:
        """Write events until the last one, in a thread: a pipe that nobody reads blocks."""
        try:
            with stdin:
                while True:
                    event = self._waiting.get()
                    stdin.write(_encode(event))
                    stdin.flush()
                    if event["kind"] == "end":
                        return
        except OSError:  # the pipe is broken: the process ended, or was killed
            self._lose("ended before the run did")

    def _lose(self, how: str) -> None:
        """Say once that the tracker is lost; events are not kept for it any more."""
        if self._is_lost.is_set():
            return
        self._is_lost.set()
        while not self._waiting.empty():
            self._waiting.get_nowait()
        wrote = _last_line(self._log)
        logger.warning(
            "tracker %s %s; the run is not affected%s; log: %s",
            self._library,
            how,
            f"; it wrote: {wrote}" if wrote else "",
            self._log,
        )

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _encode(event: Event) -> bytes:
    """A line of JSON; values that JSON does not have become text."""
    return json.dumps(event, default=str).encode() + b"\n"


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
