"""Paints the live view while something runs, and lets messages and log records stand above it."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

from areal_sdk.telemetry.terminal import RunStatus, TerminalView, clock, still_line

REFRESH_S = 0.5
HEARTBEAT_S = 30.0
"""Where nothing is repainted: silence this long looks like a hang."""


class LiveView:
    """Shows a status that changes, inside `async with`. Without a `writer` nothing is shown."""

    def __init__(
        self,
        writer: TerminalView | None,
        status: Callable[[], RunStatus],
        *,
        heartbeat_s: float = HEARTBEAT_S,
        on_refresh: Callable[[RunStatus], None] = lambda status: None,
    ) -> None:
        """`on_refresh` gets every status that is taken, also where nothing is shown."""
        self._writer = writer
        self._status = status
        self._heartbeat_s = heartbeat_s
        self._on_refresh = on_refresh
        self._began = self._told_at = time.monotonic()
        self._painter: asyncio.Task[None] | None = None
        self._log_handler = LogAboveView(self.say)

    async def __aenter__(self) -> Self:
        logging.getLogger("areal_sdk").addHandler(self._log_handler)
        self._painter = asyncio.create_task(self._refresh(), name="live view")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
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
        """A line that stays."""
        self._told_at = time.monotonic()
        if self._writer is not None:
            self._writer.message(text)

    def enter(self, phase: str) -> None:
        """A line for a phase that begins, where nothing is repainted."""
        if self.is_log:
            self.say(f"{phase}  {clock(self.elapsed_s)}")

    def show(self) -> None:
        """Show the status now: repainted, or as a line."""
        status = self._take()
        if self._writer is not None and (self._writer.repaints or status.step):
            self._writer.update(status)
            self._told_at = time.monotonic()

    def refresh(self) -> None:
        """Repaint; where nothing is repainted, give a sign of life after a long silence."""
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


class LogAboveView(logging.Handler):
    """Log records go above the live view instead of through it."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(f"{record.levelname.lower()}: {record.getMessage()}")
