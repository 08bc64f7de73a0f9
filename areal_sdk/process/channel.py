"""The child's end of a connection: blocking and thread-safe."""

import asyncio
import contextlib
import faulthandler
import itertools
import os
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, Self

from areal_sdk.errors import ArealError, CallTimeoutError, RemoteError
from areal_sdk.errors.blame import place_of, trace_of
from areal_sdk.process.frames import (
    JSON,
    Buffer,
    ChildReply,
    Frame,
    FrameDecoder,
    FrameError,
    FrameKind,
    clean_text,
    encode,
    view_of,
)

GUEST_READS_WITHIN_S = 10
"""Seconds for which a guest may take no bytes before it is cut off."""

ORPHAN_GRACE_S = 30.0
"""Seconds that an entry may take to notice that the main process is gone, before the entry is ended."""


class ChannelClosedError(ArealError):
    """The main process is gone, or asked this one to leave: clean up and return.

    A signal to the entry of a child; `run_entry` catches it, and no user sees it.
    """


class Line(Protocol):
    """The connection by which a request came, and by which its answer goes."""

    @property
    def is_closed(self) -> bool: ...

    def send_answer(
        self, request: "Request", kind: FrameKind, payload: JSON, buffers: Sequence[Buffer]
    ) -> None: ...


@dataclass(slots=True, eq=False)
class Request:
    """One call of the other side. Answer it once: `reply`, `fail`, or `emit`s and a `finish`."""

    method: str
    payload: JSON
    buffers: Sequence[memoryview]
    id: int
    channel: Line
    cancelled: bool = False
    """The caller gave up: replies are dropped. Set by the reader thread."""
    _on_cancel: Callable[[], object] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def when_cancelled(self, call: Callable[[], object]) -> None:
        """Have `call` called, by the reader thread, when the caller gives up; now if it has already."""
        with self._lock:
            self._on_cancel = call
            is_late = self.cancelled
        if is_late:
            call()

    def cancel(self) -> None:
        """Note that the caller gave up."""
        with self._lock:
            self.cancelled, call = True, self._on_cancel
        if call is not None:
            with contextlib.suppress(RuntimeError):  # its event loop is closed already
                call()

    def emit(self, payload: JSON = None, buffers: Sequence[Buffer] = ()) -> None:
        """Send one part of a streamed answer."""
        self.channel.send_answer(self, FrameKind.CHUNK, payload, buffers)

    def finish(self, payload: JSON = None, buffers: Sequence[Buffer] = ()) -> None:
        """End a streamed answer, with a last part if it is not empty."""
        self.channel.send_answer(self, FrameKind.REPLY, payload, buffers)

    def reply(self, payload: JSON = None, buffers: Sequence[Buffer] = ()) -> None:
        """Send the whole answer."""
        self.channel.send_answer(self, FrameKind.REPLY, payload, buffers)

    def fail(self, error: BaseException) -> None:
        """Raise `RemoteError` at the caller, with the error's class name and message."""
        payload = {
            "kind": type(error).__name__,
            "message": clean_text(str(error)),
            "place": clean_text(place_of(error)),
            "trace": clean_text(trace_of(error)),
        }
        self.channel.send_answer(self, FrameKind.FAIL, payload, ())


class Channel:
    """Requests in, answers out, and calls to the main process. A reader thread notices the end.

    Sending blocks while the main process does not read: it always reads, unless it is stopped.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._waiting: deque[Request] = deque()
        """Requests that nobody has taken yet, those of guests included."""
        self._open: dict[int, Request] = {}
        self._calls: dict[int, Future[ChildReply]] = {}
        """Calls of this process to the main process that have no answer yet."""
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._send_lock = threading.Lock()
        self._closed_because = ""
        self.is_dismissed = False
        """Whether the main process asked this one to leave. Otherwise the main process is gone, or has given this one
        up."""
        self._returned = threading.Event()
        self._reader = threading.Thread(target=self._read, name="channel-reader", daemon=True)

    def ready(self, payload: JSON = None) -> None:
        """Say that the entry is up (after the model is loaded, say); becomes `Child.hello`."""
        self._send(Frame(FrameKind.READY, payload=payload))

    def receive(self, *, timeout_s: float | None = None) -> Request | None:
        """The next request; None when none came in time. Raises `ChannelClosedError` at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed_because or self._waiting, timeout_s)
            self._raise_if_closed()
            return self._waiting.popleft() if self._waiting else None

    def poll(self) -> list[Request]:
        """Every request that waits, without blocking. Raises `ChannelClosedError` at the end."""
        with self._changed:
            self._raise_if_closed()
            requests = list(self._waiting)
            self._waiting.clear()
            return requests

    def begin(
        self, method: str, payload: JSON = None, buffers: Sequence[Buffer] = ()
    ) -> "Future[ChildReply]":
        """Call the main process, from any thread. Cancel the future to cancel the call.

        Its error is a `RemoteError`, or `ChannelClosedError` when the channel closes first.
        """
        answer: Future[ChildReply] = Future()
        with self._changed:
            self._raise_if_closed()
            number = next(self._numbers)
            self._calls[number] = answer
        answer.add_done_callback(partial(self._end_call, number))
        try:
            self._send(Frame(FrameKind.CALL, number, method, payload, buffers))
        except BaseException:
            answer.cancel()
            raise
        return answer

    async def call(
        self,
        method: str,
        payload: JSON = None,
        buffers: Sequence[Buffer] = (),
        *,
        timeout_s: float,
    ) -> ChildReply:
        """Call the main process from a coroutine. A deadline or a cancellation cancels the call."""
        answer = self.begin(method, payload, buffers)
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(answer)
        except TimeoutError:
            what = f"the main process did not answer {method!r} within {timeout_s:g} s"
            raise CallTimeoutError(what) from None

    @property
    def is_closed(self) -> bool:
        """Whether `receive` would raise. Check it during long work that should end with the run."""
        return bool(self._closed_because)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._returned.set()
        self._close("the entry returned")
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(timeout=1.0)
        self._socket.close()

    def fail_start(self, error: BaseException) -> None:
        """Say why the entry never got to `ready`."""
        payload = {"kind": type(error).__name__, "message": clean_text(str(error))}
        with contextlib.suppress(ChannelClosedError):
            self._send(Frame(FrameKind.FAIL, payload=payload))

    def admit(self, sock: socket.socket) -> "GuestChannel":
        """Take requests also from the process behind `sock`, which has proved that it may ask."""
        guest = GuestChannel(sock, self)
        guest._reader.start()
        return guest

    # inside

    def send_answer(
        self, request: Request, kind: FrameKind, payload: JSON, buffers: Sequence[Buffer]
    ) -> None:
        """Send an answer, or a part of one. Called by `request`.

        An answer that cannot be encoded raises, and leaves the request open: its caller can still be told.
        """
        parts = encode(Frame(kind, request.id, request.method, payload, buffers))
        is_last = kind is not FrameKind.CHUNK
        with self._changed:
            is_wanted = not request.cancelled
            known = self._open.pop(request.id, None) if is_last else self._open.get(request.id)
        if not is_wanted:
            return
        if known is not request:
            raise RuntimeError(f"request {request.method!r} was answered twice")
        self._send_parts(parts)

    def _send(self, frame: Frame) -> None:
        self._send_parts(encode(frame))

    def _send_parts(self, parts: Sequence[memoryview]) -> None:
        with self._send_lock:
            try:
                for part in parts:
                    self._socket.sendall(part)
            except OSError as exc:
                self._close(f"the main process is gone ({exc})")
                self._raise_if_closed()

    def _raise_if_closed(self) -> None:
        if self._closed_because:
            raise ChannelClosedError(self._closed_because)

    def _close(self, why: str) -> None:
        with self._changed:
            self._closed_because = self._closed_because or why
            self._changed.notify_all()
            given_up, calls = list(self._open.values()), list(self._calls.values())
        for request in given_up:
            request.cancel()
        for answer in calls:
            _settle(answer, ChannelClosedError(why))

    def _read(self) -> None:
        decoder = FrameDecoder()
        try:
            while True:
                with decoder.target() as target:
                    count = self._socket.recv_into(target)
                if count == 0:
                    break
                for frame in decoder.received(count):
                    self._take(frame)
        except (OSError, FrameError) as exc:
            self._orphaned(str(exc))
        else:
            self._orphaned("end of file")

    def _take(self, frame: Frame) -> None:
        if frame.kind is FrameKind.EXIT:
            self.is_dismissed = True
            self._close("asked to exit")
            return
        if frame.kind is FrameKind.STACKS:
            faulthandler.dump_traceback(all_threads=True)
            return
        match frame.kind:
            case FrameKind.CALL:
                buffers = [view_of(buffer) for buffer in frame.buffers]
                request = Request(frame.method, frame.payload, buffers, frame.id, self)
                with self._changed:
                    self._open[frame.id] = request
                    self._waiting.append(request)
                    self._changed.notify_all()
            case FrameKind.CANCEL:
                with self._changed:
                    given_up = self._open.pop(frame.id, None)
                    with contextlib.suppress(ValueError):  # the entry need not see it
                        self._waiting.remove(given_up)  # type: ignore[arg-type]
                if given_up is not None:
                    given_up.cancel()
            case FrameKind.REPLY:
                reply = ChildReply(frame.payload, [view_of(buffer) for buffer in frame.buffers])
                _settle(self._calls.get(frame.id), reply)
            case FrameKind.FAIL:
                where = f"the main process: {frame.method}"
                _settle(self._calls.get(frame.id), error_of(where, frame))
            case _:
                raise FrameError(f"the main process sent {frame.kind!r}")

    def _end_call(self, number: int, answer: "Future[ChildReply]") -> None:
        with self._changed:
            self._calls.pop(number, None)
        if answer.cancelled():
            with contextlib.suppress(ChannelClosedError):
                self._send(Frame(FrameKind.CANCEL, number))

    def _orphaned(self, why: str) -> None:
        self._close(f"the main process is gone ({why})")
        if not self._returned.wait(ORPHAN_GRACE_S):
            sys.stderr.write("areal_sdk: the main process is gone and the entry did not return\n")
            sys.stderr.flush()
            os._exit(os.EX_SOFTWARE)


def error_of(where: str, frame: Frame) -> RemoteError:
    """The error that a FAIL frame tells. FrameError if the frame tells none."""
    try:
        return RemoteError(where, **frame.payload)
    except TypeError as exc:
        raise FrameError(f"not an error: {frame.payload!r:.200}") from exc


def _settle(answer: "Future[ChildReply] | None", result: ChildReply | ArealError) -> None:
    if answer is None:
        return  # given up while the answer was on its way
    with contextlib.suppress(InvalidStateError):
        if isinstance(result, ChildReply):
            answer.set_result(result)
        else:
            answer.set_exception(result)


class GuestChannel(Channel):
    """The connection of a process that is not the main one. At its end, only the requests that came by it are
    cancelled."""

    def __init__(self, sock: socket.socket, host: Channel) -> None:
        super().__init__(sock)
        self._waiting, self._changed = host._waiting, host._changed
        # A guest that does not read must not hold up the answers to all others.
        seconds = struct.pack("ll", GUEST_READS_WITHIN_S, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)

    def _raise_if_closed(self) -> None:
        """Do nothing: answers to a guest that is gone are dropped."""

    def _close(self, why: str) -> None:
        super()._close(why)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _orphaned(self, why: str) -> None:
        self._close(f"a guest is gone ({why})")
        with self._send_lock:
            self._socket.close()
