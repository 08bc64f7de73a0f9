"""Paints the live view while something runs, and prints messages and log records above it."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable
from typing import Self

from areal_sdk.telemetry.live.terminal import RunStatus, StatusWriter, clock, still_line
from areal_sdk.types import Episode

logger = logging.getLogger(__name__)

REFRESH_S = 0.5
"""Pause between two paintings."""
HEARTBEAT_S = 30.0
"""Seconds between two lines if nothing is repainted: silence this long looks like a hang."""
NUM_LINES = 10
"""Number of lines for all steps or episodes together in a log, where nothing is repainted."""


def has_line(step: int, total: int) -> bool:
    """Whether step `step` of `total` gets a line in a log, where nothing is repainted: the last step does, and some
    before."""
    return step == total or step % max(1, total // NUM_LINES) == 0


class LiveView:
    """Shows a status that changes, inside `async with`. Without a `writer` nothing is shown."""

    def __init__(
        self,
        writer: StatusWriter | None,
        status: Callable[[], RunStatus],
        *,
        heartbeat_s: float = HEARTBEAT_S,
        on_refresh: Callable[[RunStatus], None] = lambda status: None,
        on_say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """`on_refresh` gets every status that is taken, and `on_say` every line, even if nothing is shown."""
        self._writer = writer
        self._status = status
        self._heartbeat_s = heartbeat_s
        self._on_refresh = on_refresh
        self._on_say = on_say
        self._began = self._told_at = time.monotonic()
        self._painter: asyncio.Task[None] | None = None
        self._log_handler = LogAboveView(self.say)

    async def __aenter__(self) -> Self:
        logging.getLogger("areal_sdk").addHandler(self._log_handler)
        self._painter = asyncio.create_task(self._refresh(), name="live view")
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._painter is not None
        self._painter.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._painter
        if self._writer is not None:
            self._writer.close()
        logging.getLogger("areal_sdk").removeHandler(self._log_handler)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._began

    @property
    def is_log(self) -> bool:
        """Whether the output is a file or a pipe: lines stay, and nothing is repainted."""
        return self._writer is not None and not self._writer.repaints

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._told_at = time.monotonic()
        self._on_say(text)
        if self._writer is not None:
            self._writer.message(text)

    def enter(self, phase: str) -> None:
        """Print a line for a phase that begins, if nothing is repainted."""
        if self.is_log:
            self.say(f"{phase}  {clock(self.elapsed_s)}")

    def show(self) -> None:
        """Show the status now: repainted, or as a line."""
        status = self._take()
        if self._writer is not None and (self._writer.repaints or status.step):
            self._writer.update(status)
            self._told_at = time.monotonic()

    def refresh(self) -> None:
        """Repaint. In a log, where nothing is repainted, give a sign of life after a long silence."""
        if not self.is_log:
            self.show()
            return
        status = self._take()
        if time.monotonic() - self._told_at >= self._heartbeat_s:
            self.say(still_line(status))

    def _take(self) -> RunStatus:
        status = self._status()
        self._on_refresh(status)
        return status

    async def _refresh(self) -> None:
        while True:
            self.refresh()
            await asyncio.sleep(REFRESH_S)


class EvalView:
    """Shows how far `areal-sdk eval` is, inside `async with`; silent without a writer."""

    def __init__(
        self, writer: StatusWriter | None, *, name: str, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self._view = LiveView(writer, self._live, heartbeat_s=heartbeat_s)
        self._is_silent = writer is None
        self._name = name
        self._num_done = self._total = 0
        self._num_sampled = 0
        self._note = ""
        self._playing_since: float | None = None

    async def __aenter__(self) -> Self:
        if not self._is_silent:
            await self._view.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._is_silent:
            if not self._view.is_log:
                self._view.show()
            await self._view.__aexit__()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        if self._is_silent:
            logger.warning("%s", text)
        else:
            self._view.say(text)

    def inform(self, text: str) -> None:
        """Print a line that stays. It is no warning, so without a view it is not printed."""
        self._view.say(text)

    def enter(self, phase: str) -> None:
        """Name the phase that begins now, before the first episode."""
        self._note = phase
        self._view.enter(phase)

    def begin(self, total: int, *, temperature: float | None = None) -> None:
        """Begin an evaluation of `total` episodes. `temperature` is given if this process decides it."""
        at = "" if temperature is None else f" at temperature {temperature:g}"
        self.enter(f"evaluating {self._name}: {total} episodes{at}")
        self._note, self._total = "", total
        self._playing_since = time.monotonic()

    def evaluated(self, episode: Episode) -> None:
        self._num_done += 1
        self._num_sampled += sum(len(turn.output_tokens) for turn in episode.turns)
        is_due = self._num_done % math.ceil(self._total / NUM_LINES) == 0
        if self._view.is_log and is_due:
            self._view.show()

    def _live(self) -> RunStatus:
        since = self._playing_since
        playing_s = 0.0 if since is None else time.monotonic() - since
        # Tokens are known when an episode ends: a shorter time than all of it would not be theirs.
        sampled_per_s = self._num_sampled / playing_s if self._num_sampled else None
        return RunStatus(
            name=self._name,
            unit="episode",
            step=self._num_done,
            total_steps=self._total,
            elapsed_s=self._view.elapsed_s,
            train_s=playing_s,
            sampled_per_s=sampled_per_s,  # an endpoint tells no tokens
            note=self._note,
        )


class LogAboveView(logging.Handler):
    """A log handler that prints records above the live view."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(f"{record.levelname.lower()}: {record.getMessage()}")
