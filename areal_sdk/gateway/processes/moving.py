"""Moves a connection to the process that owns the sessions of its requests, so that these need no hop any more.

The kernel passes the socket on, together with the request that was read from it. Most agents have a client of
their own for each episode: after two requests their connection is at the owner of their session.
"""

import asyncio
import logging
import socket
from array import array
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from aiohttp import web

from areal_sdk.process.threads import BackgroundTasks

logger = logging.getLogger(__name__)

LARGEST = 64 * 1024
"""Largest request in bytes that moves with its connection."""
_MOST_AT_ONCE = 64


class Mover:
    """Hands connections to other processes. If a socket is not taken at once, the request hops instead."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def move(self, request: web.Request, raw: bytes, path: Path) -> bool:
        """Hand over the connection of `request` with the bytes of the request. Returns whether it was taken."""
        transport = request.transport
        # SDKs wait for an answer before they ask again. What another client sent too early must not be lost.
        if transport is None or len(raw) > LARGEST or getattr(request.protocol, "_messages", True):
            return False
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        descriptor = transport.get_extra_info("socket").fileno()
        try:
            # `socket.send_fds` drops the address, up to Python 3.12 at least.
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", [descriptor]))
            self._socket.sendmsg([raw], [rights], 0, str(path))
        except OSError:  # it died, or has many to take
            return False
        transport.abort()  # closes our descriptor; the connection goes on at the other process
        return True

    def close(self) -> None:
        self._socket.close()


class MovedConnections:
    """Takes the connections that other processes hand over, and serves them."""

    def __init__(self, path: Path, serve: Callable[[], asyncio.Protocol]) -> None:
        """`serve` makes the protocol of a connection."""
        with suppress(FileNotFoundError):
            path.unlink()  # of a process that died
        self._serve = serve
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.bind(str(path))
        self._background = BackgroundTasks()
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._take)

    async def aclose(self) -> None:
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        self._socket.close()
        await self._background.cancel()

    def _take(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            try:
                raw, descriptors, _, _ = socket.recv_fds(self._socket, LARGEST, 1)
            except BlockingIOError:
                return
            for descriptor in descriptors:
                sock = socket.socket(fileno=descriptor)
                self._background.begin(self._adopt(sock, raw), name="take a connection")

    async def _adopt(self, sock: socket.socket, raw: bytes) -> None:
        try:
            sock.setblocking(False)
            _, protocol = await asyncio.get_running_loop().connect_accepted_socket(
                self._serve, sock
            )
        except OSError as exc:  # its client is gone
            logger.debug("a connection that was handed over: %s", exc)
            sock.close()
            return
        protocol.data_received(raw)
