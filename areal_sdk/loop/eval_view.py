"""What `areal-sdk eval` shows until its table comes."""

import asyncio
import contextlib
import logging
import math
import time
from types import TracebackType
from typing import Self

from areal_sdk.loop.progress import HEARTBEAT_S, REFRESH_S, ToView
from areal_sdk.telemetry import Rate
from areal_sdk.telemetry.live import LiveState, LiveWriter, clock, still_line
from areal_sdk.types import Episode

logger = logging.getLogger(__name__)

NUM_LINES = 10
"""Where nothing is repainted: an evaluation of any size tells this much."""


class EvalView:
    """Counts the episodes of one evaluation, and paints inside `async with`; silent without writer."""

    def __init__(
        self, writer: LiveWriter | None, *, name: str, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        self._writer = writer
        self._name = name
        self._heartbeat_s = heartbeat_s
        self._num_done = self._total = 0
        self._sampled = Rate()
        self._note = ""
        self._began = self._told_at = time.monotonic()
        self._playing_since: float | None = None
        self._painter: asyncio.Task[None] | None = None
        self._log_handler = ToView(self.say)

    async def __aenter__(self) -> Self:
        if self._writer is not None:
            logging.getLogger("areal_sdk").addHandler(self._log_handler)
            self._painter = asyncio.create_task(self._paint_on(self._writer), name="live view")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._writer is None or self._painter is None:
            return
        self._painter.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._painter
        if self._writer.repaints:
            self._writer.update(self._live())
        self._writer.close()
        logging.getLogger("areal_sdk").removeHandler(self._log_handler)

    def say(self, text: str) -> None:
        """A line that stays."""
        self._told_at = time.monotonic()
        if self._writer is not None:
            self._writer.message(text)
        else:
            logger.warning("%s", text)

    def inform(self, text: str) -> None:
        """A line that stays, where somebody looks: it is no warning."""
        if self._writer is not None:
            self.say(text)

    def enter(self, phase: str) -> None:
        """What happens from now on, before the first episode."""
        self._note = phase
        if self._writer is not None and not self._writer.repaints:
            self.say(f"{phase}  {clock(time.monotonic() - self._began)}")

    def begin(self, total: int) -> None:
        """From here on `total` episodes are played."""
        self.enter(f"evaluating {self._name}: {total} episodes")
        self._note, self._total = "", total
        self._playing_since = time.monotonic()

    def evaluated(self, episode: Episode) -> None:
        self._num_done += 1
        self._sampled.add(sum(len(turn.output_tokens) for turn in episode.turns))
        is_due = self._num_done % math.ceil(self._total / NUM_LINES) == 0
        if self._writer is not None and not self._writer.repaints and is_due:
            self._writer.update(self._live())
            self._told_at = time.monotonic()

    async def _paint_on(self, writer: LiveWriter) -> None:
        while True:
            if writer.repaints:
                writer.update(self._live())
            elif time.monotonic() - self._told_at >= self._heartbeat_s:
                self.say(still_line(self._live()))
            await asyncio.sleep(REFRESH_S)

    def _live(self) -> LiveState:
        now = time.monotonic()
        return LiveState(
            name=self._name,
            unit="episode",
            step=self._num_done,
            total_steps=self._total,
            elapsed_s=now - self._began,
            train_s=0.0 if self._playing_since is None else now - self._playing_since,
            sampled_per_s=self._sampled.per_second() or None,  # another's endpoint tells no tokens
            note=self._note,
        )
