"""The wire between the main process and a child: one header, then raw buffers. No I/O here.

    u32 header length | orjson header {k, i, m, p, b} | buffer 0 | buffer 1 | ...

Buffers (numpy arrays, bytes) are neither copied into the header nor escaped: they are sent from where they lie and
received into memory of their own. JSON has no NaN: a float that may be NaN arrives as None.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import orjson

from areal_sdk.errors import ArealError

if TYPE_CHECKING:
    import numpy as np

JSON: TypeAlias = Any
"""A value that orjson can write; a tuple arrives as a list."""

Buffer: TypeAlias = Union[bytes, bytearray, memoryview, "np.ndarray[Any, Any]"]
"""Bulk data to send. Received, it is always a `memoryview`."""

MAX_HEADER_BYTES = 64 * 1024 * 1024
MAX_BUFFER_BYTES = 64 * 1024**3
SCRATCH_BYTES = 256 * 1024

_PREFIX = struct.Struct("<I")


class FrameKind(StrEnum):
    CHALLENGE = "challenge"
    """main -> TCP child: prove that you know the token."""
    IDENTIFY = "identify"
    """TCP child -> main: the proof, and who I am."""
    START = "start"
    """main -> child: import this entry and call it."""
    READY = "ready"
    """child -> main: the entry is up."""
    CALL = "call"
    """A request, of either side."""
    CANCEL = "cancel"
    """The caller gave up that request."""
    EXIT = "exit"
    """main -> child: please leave."""
    STACKS = "stacks"
    """main -> child: write every thread's stack to your log."""
    CHUNK = "chunk"
    """Part of an answer; more follows."""
    REPLY = "reply"
    """The answer, or the last part of one."""
    FAIL = "fail"
    """The request raised; with id 0, the start of the child did."""


@dataclass(frozen=True, slots=True)
class Frame:
    kind: FrameKind
    id: int = 0
    """Id of the request that the frame is, or belongs to."""
    method: str = ""
    payload: JSON = None
    buffers: Sequence[Buffer] = ()
    """Received buffers are writable memoryviews."""


@dataclass(frozen=True, slots=True)
class ChildReply:
    """An answer, or one part of a streamed answer."""

    payload: JSON
    buffers: Sequence[memoryview] = ()
    """Writable and not shared: `numpy.frombuffer` can use them without a copy."""


def view_of(buffer: Buffer) -> memoryview:
    """`memoryview(buffer)`; the stubs say that an ndarray is a buffer from Python 3.12 on only."""
    return memoryview(buffer)  # type: ignore[arg-type]


class FrameError(ArealError, ValueError):
    """The bytes that arrived are not a frame of this protocol."""


def clean_text(text: str) -> str:
    """`text` without halves of surrogate pairs, which exceptions may hold and JSON cannot."""
    return text.encode(errors="replace").decode()


def encode(frame: Frame) -> list[memoryview]:
    """The parts to send, in order; the buffers are not copied."""
    parts = [_as_bytes_view(buffer) for buffer in frame.buffers]
    header = orjson.dumps(
        {
            "k": frame.kind.value,
            "i": frame.id,
            "m": frame.method,
            "p": frame.payload,
            "b": [part.nbytes for part in parts],
        }
    )
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(
            f"the payload of {frame.method!r} is {len(header)} bytes of JSON, "
            f"more than {MAX_HEADER_BYTES}: send bulk data as buffers"
        )
    head = memoryview(_PREFIX.pack(len(header)) + header)
    return [head, *(part for part in parts if part.nbytes)]


def _as_bytes_view(buffer: Buffer) -> memoryview:
    view = view_of(buffer)
    if view.nbytes == 0:
        return memoryview(b"")  # cast() refuses empty shapes
    return view.cast("B") if view.c_contiguous else memoryview(view.tobytes())


class FrameDecoder:
    """Turns received bytes into frames, in place: `target()` says where the next bytes belong.

    Small things are read into a scratch buffer, many at a time; a big buffer is received straight into its own memory.
    """

    def __init__(
        self, *, max_header_bytes: int = MAX_HEADER_BYTES, max_buffer_bytes: int = MAX_BUFFER_BYTES
    ) -> None:
        self.max_header_bytes = max_header_bytes
        self.max_buffer_bytes = max_buffer_bytes
        self._scratch = bytearray(SCRATCH_BYTES)
        self._header = bytearray()
        self._frame: Frame | None = None
        self._bodies: list[bytearray] = []
        self._body_index = 0
        self._body_filled = 0

    @property
    def is_mid_frame(self) -> bool:
        """Whether a frame has begun and is not complete, so that the stream may not end here."""
        return self._frame is not None or bool(self._header)

    def target(self) -> memoryview:
        """The buffer to receive into next; never empty. Release it before calling `received`."""
        if self._frame is not None:
            body = self._bodies[self._body_index]
            if len(body) - self._body_filled >= SCRATCH_BYTES:
                return memoryview(body)[self._body_filled :]
        return memoryview(self._scratch)

    def received(self, count: int) -> list[Frame]:
        """Account for `count` bytes written into `target()`; returns the frames they complete."""
        frames: list[Frame] = []
        if self._frame is not None:
            remaining = len(self._bodies[self._body_index]) - self._body_filled
            if remaining >= SCRATCH_BYTES:  # they went straight into the body
                self._body_filled += count
                self._finish_bodies(frames)
                return frames
        data = memoryview(self._scratch)[:count]
        while data:
            data = self._take_header(data, frames) if self._frame is None else self._take_body(data)
            if self._frame is not None:
                self._finish_bodies(frames)
        return frames

    def _take_header(self, data: memoryview, frames: list[Frame]) -> memoryview:
        """Consume prefix and header bytes; sets `_frame` when the header is complete."""
        if not self._header and len(data) >= _PREFIX.size:
            end = _PREFIX.size + self._header_length(data)
            if len(data) >= end:  # almost always: it came in one piece
                self._open_frame(data[_PREFIX.size : end])
                return data[end:]
        wanted = _PREFIX.size
        if len(self._header) >= wanted:
            wanted += self._header_length(self._header)
        take = min(len(data), wanted - len(self._header))
        self._header += data[:take]
        data = data[take:]
        if len(self._header) == _PREFIX.size:
            self._header_length(self._header)  # a bad one is refused now, not with the next byte
        elif len(self._header) == wanted:
            raw = bytes(self._header[_PREFIX.size :])
            self._header.clear()
            self._open_frame(raw)
        return data

    def _header_length(self, prefix: memoryview | bytearray) -> int:
        (length,) = _PREFIX.unpack_from(prefix)
        if not 0 < length <= self.max_header_bytes:
            raise FrameError(
                f"a header of {length} bytes; 1 to {self.max_header_bytes} are allowed"
            )
        return int(length)

    def _open_frame(self, raw: bytes | memoryview) -> None:
        try:
            header = orjson.loads(raw)
            sizes = [int(size) for size in header["b"]]
            frame = Frame(FrameKind(header["k"]), int(header["i"]), header["m"], header["p"])
            if not isinstance(frame.method, str):
                raise TypeError(f"the method is {frame.method!r:.100}")
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as exc:
            raise FrameError(f"not a frame header: {exc}") from exc
        if any(size < 0 for size in sizes) or sum(sizes) > self.max_buffer_bytes:
            raise FrameError(
                f"buffers of {sizes} bytes; at most {self.max_buffer_bytes} in a frame"
            )
        self._frame = frame
        self._bodies = [bytearray(size) for size in sizes]
        self._body_index = 0
        self._body_filled = 0

    def _take_body(self, data: memoryview) -> memoryview:
        body = self._bodies[self._body_index]
        take = min(len(data), len(body) - self._body_filled)
        body[self._body_filled : self._body_filled + take] = data[:take]
        self._body_filled += take
        return data[take:]

    def _finish_bodies(self, frames: list[Frame]) -> None:
        """Move past filled bodies; when all are, the frame is complete."""
        assert self._frame is not None
        while self._body_index < len(self._bodies):
            if self._body_filled < len(self._bodies[self._body_index]):
                return
            self._body_index += 1
            self._body_filled = 0
        frame, bodies = self._frame, self._bodies
        self._frame, self._bodies = None, []
        views = [memoryview(body) for body in bodies]
        frames.append(Frame(frame.kind, frame.id, frame.method, frame.payload, views))
