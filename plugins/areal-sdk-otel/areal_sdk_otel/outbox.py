"""The outbox of a collector: bounded, the oldest left out first, and counted.

A run only puts pieces into an outbox. A thread sends them; a collector that is slow, refuses or is dead costs the run
nothing but the pieces.
"""

import asyncio
import logging
import threading
from collections import deque
from contextlib import suppress
from io import BytesIO
from typing import Any, Final

import aiohttp
import orjson

from areal_sdk_otel import otlp

logger = logging.getLogger("areal_sdk.otel")

MAX_WAITING_BYTES: Final = 32 << 20
MAX_BODY_BYTES: Final = 1 << 20
EVERY_S: Final = 1.0
"""Seconds for which pieces gather before a request."""
REQUEST_S: Final = 10.0
LONGEST_PAUSE_S: Final = 30.0
TRY_AGAIN: Final = frozenset({429, 502, 503, 504})
"""Answers of a collector that may take the same request later, by the OTLP specification."""

CONTENTS: Final = {otlp.Signal.TRACES: "spans", otlp.Signal.LOGS: "rewards"}


class Refused(Exception):
    """The collector will never take this request."""


class Outbox:
    """The spans, or the log records, of a run on their way to one address."""

    def __init__(self, signal: otlp.Signal, *, endpoint: str, resource: otlp.Attributes) -> None:
        self.signal = signal
        self._url = f"{endpoint.rstrip('/')}/v1/{signal}"
        self._resource = resource
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0
        self._has_warned = False
        self.num_sent = 0
        self.num_lost = 0

    def put(self, pieces: list[bytes]) -> None:
        """Return at once. The oldest pieces make room for these."""
        with self._lock:
            for piece in pieces:
                self._waiting.append(piece)
                self._num_bytes += len(piece)
            while self._num_bytes > MAX_WAITING_BYTES:
                self._num_bytes -= len(self._waiting.popleft())
                self.num_lost += 1

    async def send_until(self, closing: asyncio.Event, session: aiohttp.ClientSession) -> None:
        """Send the pieces that come until `closing` is set, and then the pieces that are left."""
        while not closing.is_set():
            await _wait(closing, EVERY_S)
            while pieces := self._take():
                await self._deliver(pieces, closing, session)

    def end(self) -> None:
        """Count what was not sent, and say once how much was lost."""
        with self._lock:
            self.num_lost += len(self._waiting)
            self._waiting.clear()
            self._num_bytes = 0
        if self.num_lost:
            logger.warning(
                "otel: %d of %d %s did not reach %s",
                self.num_lost,
                self.num_lost + self.num_sent,
                CONTENTS[self.signal],
                self._url,
            )

    def _take(self) -> list[bytes]:
        """The next pieces that fit one request."""
        pieces: list[bytes] = []
        room = MAX_BODY_BYTES
        with self._lock:
            while self._waiting and (not pieces or len(self._waiting[0]) <= room):
                piece = self._waiting.popleft()
                room -= len(piece)
                self._num_bytes -= len(piece)
                pieces.append(piece)
        return pieces

    async def _deliver(
        self, pieces: list[bytes], closing: asyncio.Event, session: aiohttp.ClientSession
    ) -> None:
        """Send one request. A collector that is away is tried until the run ends; new pieces wait meanwhile."""
        lost, pause_s = len(pieces), EVERY_S
        try:
            while True:
                try:
                    lost = await self._post(pieces, session)
                    return
                except Refused as error:
                    self._warn(error)
                    return
                except (aiohttp.ClientError, TimeoutError) as error:
                    self._warn(error)
                if closing.is_set():
                    return
                await _wait(closing, pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
        finally:
            self.num_lost += lost
            self.num_sent += len(pieces) - lost

    async def _post(self, pieces: list[bytes], session: aiohttp.ClientSession) -> int:
        """The number of pieces that the collector did not take."""
        data = BytesIO(otlp.body(self.signal, self._resource, pieces))  # sent in parts
        headers = {"Content-Type": "application/json"}
        async with session.post(self._url, data=data, headers=headers) as response:
            if response.status in TRY_AGAIN:
                response.raise_for_status()
            if response.status >= 300:
                words = (await response.text(errors="replace")).strip()[:200]
                raise Refused(f"it answered {response.status} {words}".strip())
            rejected, why = _rejected(await response.read())
        if rejected:
            self._warn(Refused(f"it rejected {rejected} of {len(pieces)}: {why}"))
        return min(rejected, len(pieces))

    def _warn(self, error: Exception) -> None:
        if self._has_warned:
            return
        self._has_warned = True
        logger.warning(
            "otel: %s does not take the %s of this run (%s: %s). The run is not affected. %d MB wait; older ones are "
            "left out, and counted at the end",
            self._url,
            CONTENTS[self.signal],
            type(error).__name__,
            error,
            MAX_WAITING_BYTES >> 20,
        )


async def _wait(closing: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        await asyncio.wait_for(closing.wait(), seconds)


def _rejected(answer: bytes) -> tuple[int, str]:
    """The pieces that a collector rejected of a request that it took, and why.

    >>> _rejected(b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too old"}}'), _rejected(b"")
    ((2, 'too old'), (0, ''))
    """
    try:
        partial: Any = orjson.loads(answer).get("partialSuccess") or {}
        number = partial.get("rejectedSpans") or partial.get("rejectedLogRecords") or 0
        return int(number), str(partial.get("errorMessage", ""))
    except (ValueError, AttributeError, TypeError):  # an answer that is not JSON rejects nothing
        return 0, ""
