"""New weights to machines that do not see their files: over HTTP, along a chain of receivers.

    main process: send_file -- PUT --> Relay -- PUT --> Relay -- PUT --> Relay

A receiver passes each piece on as it arrives, so the link of the main process carries each byte once, and N
receivers take hardly longer than one. Deadlines are about progress: a link may be slow, but not silent.
"""

import contextlib
import http.client
import json
import os
import socket
import sys
import threading
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer
from typing import IO, Any

from areal_sdk.backends.room import take_room
from areal_sdk.errors import EngineError
from areal_sdk.process.network.handshake import is_equal, join_address, split_address

PIECE_BYTES = 256 * 2**10
SILENT_S = 60.0
"""Seconds after which a link that takes no byte is given up."""
SILENT_MORE_S = 5.0
"""Additional seconds for each receiver further on, so that the receiver in front of a silent link can report the link
before it is given up itself."""
CONNECT_S = 10.0
"""Seconds for a receiver to accept the connection, before any weights are sent."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The fate of one file on its way along a chain. A receiver that is not named was cut off by another."""

    crc32: Mapping[str, str] = field(default_factory=dict)
    """Checksum of the bytes that each receiver holds."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """The reason why a receiver did not get the bytes."""


def send_file(
    path: Path, name: str, receivers: Sequence[str], *, token: str
) -> tuple[str, Arrivals]:
    """Send a file along the chain of `receivers`, each a `HOST:PORT`. Returns the crc32 of the file, and the arrivals."""
    with path.open("rb", buffering=0) as file:
        chain = Chain(name, receivers, size=os.fstat(file.fileno()).st_size, token=token)
        crc, piece = 0, memoryview(bytearray(PIECE_BYTES))
        while count := file.readinto(piece):
            crc = zlib.crc32(piece[:count], crc)
            chain.send(piece[:count])
    return f"{crc:08x}", chain.finish()


class Chain:
    """The remaining receivers. The first one that can be reached gets the file, and sends it on to the others."""

    def __init__(self, name: str, receivers: Sequence[str], *, size: int, token: str) -> None:
        self._failed: dict[str, str] = {}
        self._connection: http.client.HTTPConnection | None = None
        self._silent_s = SILENT_S + SILENT_MORE_S * len(receivers)
        self._sent_to = ""
        for index, receiver in enumerate(receivers):
            rest = receivers[index + 1 :]
            try:
                self._connection = self._begin(receiver, rest, name, size, token)
            except (OSError, ValueError) as exc:
                self._failed[receiver] = f"cannot be reached: {exc}"
            else:
                self._sent_to = receiver
                return

    def send(self, piece: memoryview) -> None:
        if self._connection is None:
            return
        try:
            while piece:
                piece = piece[self._connection.sock.send(piece) :]
        except OSError as exc:
            self._give_up(exc)

    def finish(self) -> Arrivals:
        """The receivers' answers about the whole file."""
        if self._connection is None:
            return Arrivals({}, self._failed)
        try:
            response = self._connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
            if response.status != 200:
                raise OSError(answer.get("error", response.reason))
        except (OSError, ValueError, http.client.HTTPException) as exc:
            self._give_up(exc)
            return Arrivals({}, self._failed)
        self._connection.close()
        return Arrivals(answer["crc32"], {**self._failed, **answer["failed"]})

    def _begin(
        self, receiver: str, rest: Sequence[str], name: str, size: int, token: str
    ) -> http.client.HTTPConnection:
        host, port = split_address(receiver)
        connection = http.client.HTTPConnection(host, port, timeout=CONNECT_S)
        connection.putrequest("PUT", f"/{name}")
        connection.putheader("Authorization", f"Bearer {token}")
        connection.putheader("Content-Length", str(size))
        connection.putheader("X-Self", receiver)
        connection.putheader("X-Next", ",".join(rest))
        connection.endheaders()
        connection.sock.settimeout(self._silent_s)
        return connection

    def _give_up(self, error: Exception) -> None:
        """Stop sending, and note why. The fate of the receivers further down the chain stays unknown."""
        assert self._connection is not None
        self._connection.close()
        self._connection = None
        why = (
            f"took nothing for {self._silent_s:g} s"
            if isinstance(error, TimeoutError)
            else "broke off"
        )
        self._failed[self._sent_to] = f"{why}: {error}"


class Relay:
    """The receiver on a machine: keeps the files of one version, and passes them on."""

    def __init__(self, host: str, *, token: str) -> None:
        self._files: dict[str, IO[bytes]] = {}
        self._lock = threading.Lock()
        relay = self

        class Handler(BaseHTTPRequestHandler):
            timeout = SILENT_S

            def do_PUT(self) -> None:
                relay._receive(self, token)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: only errors are told, and those in the answer."""

        self._server = _Server((host, 0), Handler)
        port = self._server.server_address[1]
        self.address = join_address(host, port)
        threading.Thread(target=self._server.serve_forever, name="relay", daemon=True).start()

    def path_of(self, name: str) -> str:
        """The path at which another process of this machine opens a file that has arrived."""
        return f"/proc/{os.getpid()}/fd/{self._files[name].fileno()}"

    def forget(self) -> None:
        """Free the room of all files. Mapped parts stay until they are unmapped."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self.forget()

    def _receive(self, request: BaseHTTPRequestHandler, token: str) -> None:
        if not is_equal(request.headers.get("Authorization", ""), f"Bearer {token}"):
            return _answer(request, 403, {"error": "this receiver belongs to another run"})
        size, name = int(request.headers["Content-Length"]), request.path.lstrip("/")
        rest = [hop for hop in request.headers["X-Next"].split(",") if hop]
        request.connection.settimeout(SILENT_S + SILENT_MORE_S * (len(rest) + 1))
        own, crcs, failed = request.headers["X-Self"], {}, {}
        try:
            file = take_room(size, whose="a server's")
        except EngineError as exc:  # those behind may have room
            file, failed[own] = open(os.devnull, "wb"), str(exc)  # noqa: SIM115
        chain = Chain(name, rest, size=size, token=token)
        try:
            crc = self._copy(request, file, chain, size)
        except OSError:  # the sender says so, or is gone
            file.close()
            request.close_connection = True
            return None
        if own in failed:
            file.close()
        else:
            crcs[own] = f"{crc:08x}"
            self._keep(name, file)
        arrivals = chain.finish()
        answer = {"crc32": {**crcs, **arrivals.crc32}, "failed": {**failed, **arrivals.failed}}
        return _answer(request, 200, answer)

    def _keep(self, name: str, file: IO[bytes]) -> None:
        with self._lock:
            former = self._files.pop(name, None)
            self._files[name] = file
        if former is not None:
            former.close()

    @staticmethod
    def _copy(request: BaseHTTPRequestHandler, file: IO[bytes], chain: Chain, size: int) -> int:
        """Keep and pass on the bytes of a request. Returns their crc32."""
        crc, left, piece = 0, size, memoryview(bytearray(PIECE_BYTES))
        while left:
            count = request.rfile.readinto1(piece[: min(left, PIECE_BYTES)])
            if not count:
                raise ConnectionError("the sender broke off")
            crc = zlib.crc32(piece[:count], crc)
            file.write(piece[:count])
            chain.send(piece[:count])
            left -= count
        file.flush()
        return crc


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind, and do not ask for this machine's name. The base class asks, and may wait for a name server."""
        TCPServer.server_bind(self)

    def handle_error(self, request: object, client_address: object) -> None:
        """Do not log a connection that breaks, which is the caller's concern."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


def _answer(request: BaseHTTPRequestHandler, status: int, body: Mapping[str, object]) -> None:
    raw = json.dumps(body).encode()
    with contextlib.suppress(OSError):
        request.send_response(status)
        request.send_header("Content-Length", str(len(raw)))
        request.end_headers()
        request.wfile.write(raw)
    request.close_connection = True
