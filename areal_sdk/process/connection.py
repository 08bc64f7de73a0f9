"""The main process's end of a connection: frames in, frames out, without blocking the loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from areal_sdk.process.frames import Frame, FrameDecoder, FrameError, encode

WRITE_CHUNK_BYTES = 1024 * 1024
"""Size of the pieces that the transport gets, since it copies all bytes that the socket does not take at once."""


class Connection(asyncio.BufferedProtocol):
    """Sends frames in order and hands received ones to `on_frame`.

    Outgoing buffers wait, uncopied, until the peer reads: memory is bounded by what callers hold.
    Receiving never stops, so that two peers sending at once cannot block each other.
    """

    def __init__(self) -> None:
        self.on_frame: Callable[[Frame], None] = lambda frame: None
        self.on_lost: Callable[[str], None] = lambda why: None
        """Function that is called once the connection is lost, with the reason."""
        self._decoder = FrameDecoder()
        self._outbox: deque[memoryview] = deque()
        self._transport: asyncio.Transport | None = None
        self._is_paused = False
        self._why_lost = ""

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def send(self, frame: Frame) -> None:
        """Queue `frame`. A frame to a peer that is gone is dropped: `on_lost` tells of the loss.

        Do not change its buffers before the peer has answered.
        """
        parts = encode(frame)
        if self.is_open:
            self._outbox.extend(parts)
            self._pump()

    def close(self, why: str = "closed by this side") -> None:
        """Break the connection now; unsent frames are dropped."""
        self._why_lost = self._why_lost or why
        if self._transport is not None:
            self._transport.abort()

    def _pump(self) -> None:
        assert self._transport is not None
        while self._outbox and not self._is_paused:
            part = self._outbox.popleft()
            if len(part) > WRITE_CHUNK_BYTES:
                self._outbox.appendleft(part[WRITE_CHUNK_BYTES:])
                part = part[:WRITE_CHUNK_BYTES]
            self._transport.write(part)

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(
            asyncio.Transport, transport
        )  # by its methods: uvloop's is no subclass
        self._transport.set_write_buffer_limits(high=WRITE_CHUNK_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._decoder.target()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._decoder.received(nbytes):
                self.on_frame(frame)
        except FrameError as exc:
            self.close(f"sent what is not our protocol ({exc})")

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._outbox.clear()
        if not self._why_lost:
            self._why_lost = f"closed its connection{f' ({exc})' if exc else ''}"
        self.on_lost(self._why_lost)
