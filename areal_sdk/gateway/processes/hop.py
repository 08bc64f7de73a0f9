"""The hop: a request that reached the wrong process goes to the owner of its session, and the answer back.

    client --TCP--> a process --Unix socket--> the owner: the whole gateway, as for requests of its own
           <------  its bytes as they are <---

The process that passes a request on looks only for the end of the answer. If a client leaves, the process
closes its connection to the owner, and the owner cancels the request.

A connection with two such requests in a row for the same owner moves there (`moving.py`).
"""

import asyncio
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from areal_sdk.gateway.errors import gateway_lost
from areal_sdk.gateway.processes.moving import Mover
from areal_sdk.gateway.wire.http import discard_body, read_body, refuse_body

_MOST_UNREAD = 256 * 1024
_IDLE_S = 30.0
"""A connection that was idle for longer is not used again: the owner may be about to close it."""
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked\r\n", re.IGNORECASE)
_CLOSE = re.compile(rb"\r\nconnection: *close\r\n", re.IGNORECASE)
_NOT_PASSED_ON = {
    b"connection",
    b"keep-alive",
    b"content-length",
    b"transfer-encoding",
    b"expect",
    b"upgrade",
}


class Hop:
    """Passes requests on to one other process."""

    def __init__(self, path: Path, *, door: Path, mover: Mover) -> None:
        """`path` is the owner's Unix socket. `door` is the socket at which the owner takes connections from `mover`."""
        self._path = path
        self._door = door
        self._mover = mover
        self._idle: list[_Link] = []

    async def pass_on(self, request: web.Request, *, moves: bool) -> web.StreamResponse:
        """The owner's answer, which is written to the client as it comes.

        With `moves` the connection goes to the owner together with the request, if it can.
        """
        refuse_body(request)
        if not request.content.is_eof():
            await asyncio.sleep(0)  # most bodies follow their head at once
        if moves and request.keep_alive and request.content.is_eof():
            raw = _whole(request, await read_body(request))
            if self._mover.move(request, raw, self._door):
                return _Passed(200, keeps_alive=False)
        link = await self._link()
        is_over = False
        sending: asyncio.Task[None] | None = None
        try:
            if request.content.is_eof():
                link.write(_whole(request, await read_body(request)))
            else:
                link.write(_head(request, b"Transfer-Encoding: chunked"))
                sending = asyncio.create_task(_send_body(request, link), name="pass a body on")
            answer = AnswerReader(is_head=request.method == "HEAD")
            has_begun = await _copy(answer, link, request)
            is_over = answer.is_over and not answer.closes and request.content.is_eof()
            if not answer.is_over and not (has_begun and answer.ends_with_connection):
                if not has_begun:
                    raise gateway_lost()
                if request.transport is not None:
                    request.transport.abort()  # half of it is sent: the client must not take it for whole
            if not request.content.is_eof():
                await discard_body(request)
            return _Passed(answer.status, keeps_alive=is_over and request.keep_alive)
        finally:
            if sending is not None:
                sending.cancel()
                await asyncio.gather(sending, return_exceptions=True)
            if is_over:
                self._idle.append(link)
            else:
                link.abort()

    async def ask(self, path: str, *, headers: str = "") -> bytes:
        """The body of the owner's answer to a GET."""
        link = await self._link()
        answer, parts = AnswerReader(), list[bytes]()
        try:
            link.write(f"GET {path} HTTP/1.1\r\nHost: peer\r\n{headers}\r\n".encode())
            while not answer.is_over:
                data = await link.read()
                if not data:
                    raise gateway_lost()
                parts.append(data)
                answer.feed(data)
        except BaseException:
            link.abort()
            raise
        self._idle.append(link)
        if answer.status != 200:
            raise RuntimeError(f"another gateway process answered {answer.status} to {path}")
        return b"".join(parts).partition(b"\r\n\r\n")[2]

    def close(self) -> None:
        idle, self._idle = self._idle, []
        for link in idle:
            link.abort()

    async def _link(self) -> "_Link":
        now = asyncio.get_running_loop().time()
        while self._idle:
            link = self._idle.pop()
            if link.is_open and now - link.used_at < _IDLE_S:
                return link
            link.abort()
        try:
            _, link = await asyncio.get_running_loop().create_unix_connection(
                lambda: _Link(self._forget), str(self._path)
            )
        except OSError as exc:
            raise gateway_lost() from exc
        return link

    def _forget(self, link: "_Link") -> None:
        with suppress(ValueError):
            self._idle.remove(link)


class AnswerReader:
    """Finds the end of an HTTP answer of a gateway in the bytes that are fed.

    >>> answer = AnswerReader()
    >>> answer.feed(b"HTTP/1.1 200 OK\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n2\\r\\nhi\\r\\n0\\r")
    >>> answer.status, answer.is_over
    (200, False)
    >>> answer.feed(b"\\n\\r\\n"); answer.is_over
    True
    """

    def __init__(self, *, is_head: bool = False) -> None:
        self.status = 0
        """Status of the answer; 0 until the head is whole."""
        self.is_over = False
        self.closes = False
        """Whether the connection ends with this answer."""
        self.ends_with_connection = False
        """Whether only the end of the connection ends the answer."""
        self._is_head = is_head
        self._is_chunked = False
        self._is_last_chunk = False
        self._line = b""
        """Bytes whose line is not whole yet."""
        self._left = 0
        """Number of bytes that are still to come before the size of the next chunk, or before the end."""

    def feed(self, data: bytes) -> None:
        if not self.status:
            data = self._line + data
            head, end, data = data.partition(b"\r\n\r\n")
            if not end:
                self._line = head
                return
            self._line = b""
            self._read_head(head + b"\r\n")
        if self._is_chunked:
            self._feed_chunks(data)
        elif not self.ends_with_connection:
            self._left -= len(data)
            self.is_over = self._left <= 0

    def _read_head(self, head: bytes) -> None:
        self.status = int(head[9:12])
        self.closes = _CLOSE.search(head) is not None
        if self._is_head or self.status in (204, 304):
            return
        if (length := _LENGTH.search(head)) is not None:
            self._left = int(length[1])
        elif _CHUNKED.search(head) is not None:
            self._is_chunked = True
        else:
            self.closes = self.ends_with_connection = True

    def _feed_chunks(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self._left:
                taken = min(self._left, len(data) - at)
                self._left -= taken
                at += taken
                self.is_over = self._is_last_chunk and not self._left
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at:]
                return
            size = int(self._line + data[at:end], 16)
            self._line = b""
            at = end + 1
            self._is_last_chunk = not size
            self._left = size + 2  # and the end of its line


class _Link(asyncio.Protocol):
    """A connection to the owner. One request at a time uses it."""

    def __init__(self, on_lost: Callable[["_Link"], None]) -> None:
        self.used_at = 0.0
        self.is_open = True
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._news: asyncio.Future[None] | None = None
        self._can_write = asyncio.Event()
        self._can_write.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        if len(self._received) > _MOST_UNREAD and self._transport is not None:
            self._transport.pause_reading()
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._can_write.set()
        self._wake()
        self._on_lost(self)

    def pause_writing(self) -> None:
        self._can_write.clear()

    def resume_writing(self) -> None:
        self._can_write.set()

    def write(self, data: bytes) -> None:
        self.used_at = self._loop.time()
        if self._transport is not None:
            self._transport.write(data)

    async def drain(self) -> None:
        await self._can_write.wait()

    async def read(self) -> bytes:
        """Wait for bytes and return all that have come; empty at the end of the connection."""
        if not self._received and self.is_open:
            self._news = self._loop.create_future()
            await self._news
        data = bytes(self._received)
        self._received.clear()
        if self._transport is not None and len(data) > _MOST_UNREAD:
            self._transport.resume_reading()
        return data

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _wake(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)


class _Passed(web.StreamResponse):
    """An answer that was passed on to the client already, exactly as its owner wrote it."""

    def __init__(self, status: int, *, keeps_alive: bool) -> None:
        super().__init__(status=status)
        self._keeps_alive = keeps_alive

    @property
    def keep_alive(self) -> bool:
        return self._keeps_alive

    async def prepare(self, request: web.BaseRequest) -> None:
        """Do nothing: the owner's head was sent already."""

    async def write_eof(self, data: bytes = b"") -> None:
        """Do nothing: the owner's end was sent already."""


def _whole(request: web.Request, body: bytes) -> bytes:
    return _head(request, b"Content-Length: %d" % len(body)) + body


def _head(request: web.Request, framing: bytes) -> bytes:
    """The head of the request as the client wrote it, except for its connection and the framing of its body."""
    minor = request.version.minor
    lines = [f"{request.method} {request.raw_path} HTTP/1.{minor}".encode()]
    lines += [
        name + b": " + value
        for name, value in request.raw_headers
        if name.lower() not in _NOT_PASSED_ON
    ]
    return b"\r\n".join((*lines, framing, b"\r\n"))


async def _copy(answer: AnswerReader, link: _Link, request: web.Request) -> bool:
    """Write the answer to the client, until the answer ends, or client or owner is gone. Returns whether any part of
    the answer came."""
    held = b""
    has_begun = False
    while not answer.is_over and (data := await link.read()):
        answer.feed(data)
        if not answer.status:
            held += data  # half a head
            continue
        has_begun = True
        try:
            await request.writer.write(held + data)
        except ConnectionResetError:  # the client left, and the owner sees it by our leaving
            break
        held = b""
    return has_begun


async def _send_body(request: web.Request, link: _Link) -> None:
    """Send a body on as it comes. The owner has a deadline and a limit for it."""
    while data := await request.content.readany():
        link.write(b"%x\r\n%b\r\n" % (len(data), data))
        await link.drain()
    link.write(b"0\r\n\r\n")
