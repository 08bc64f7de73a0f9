"""Accepts children that were not started by this process (torchrun, Ray): they connect over TCP. A port
is kept free for a process that listens on it later."""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from areal_sdk.errors import ProcessError
from areal_sdk.process.child import Child, kill_all
from areal_sdk.process.connection import Connection
from areal_sdk.process.frames import Frame, FrameDecoder, FrameError, FrameKind, encode
from areal_sdk.process.network.handshake import (
    HANDSHAKE_S,
    is_proof,
    join_address,
    new_nonce,
    notice_dead_peers,
    prove,
)
from areal_sdk.process.spec import ChildExit, ProcessSpec
from areal_sdk.process.threads import BackgroundTasks


class _RefusedError(ProcessError):
    """The peer may not join. The peer is told why, and the error about a missing peer repeats it."""


@dataclass(frozen=True, slots=True)
class _Peer:
    """A process that proved that it knows the token, and waits for its entry."""

    name: str
    host: str
    pid: int
    nonce: str
    sock: socket.socket


@dataclass(frozen=True, slots=True)
class Starter:
    """A process on another machine as its launcher knows it: its log, and how to signal it."""

    log_path: Path
    signal: Callable[[int], None]


class RemoteProcess:
    """The body of a child on another machine. Without a starter, the connection is all that is known of the process."""

    def __init__(
        self,
        who: str,
        host: str,
        connection: Connection,
        *,
        pid: int = 0,
        starter: Starter | None = None,
    ) -> None:
        self.pid = pid
        self.host = host
        self.log_path = starter.log_path if starter else Path(f"<output of {who} on {host}>")
        self._connection = connection
        self._starter = starter

    def signal(self, number: int) -> None:
        """Have the starter send the signal. A process without a starter ends itself when its connection is closed."""
        if self._starter is not None:
            self._starter.signal(number)

    def ask_for_stacks(self) -> None:
        self._connection.send(Frame(FrameKind.STACKS))


class Listener:
    """Accepts children over TCP that know the token: `open` it, `accept` specs, `aclose` it."""

    def __init__(self, sock: socket.socket, token: str) -> None:
        self.token = token
        self._socket = sock
        self._waiting: dict[str, _Peer] = {}
        self._arrived = asyncio.Event()
        self._refused: list[str] = []
        self._handshakes = BackgroundTasks()
        self._accepting = asyncio.create_task(self._accept_forever(), name="listener")

    @classmethod
    async def open(
        cls, host: str = "127.0.0.1", port: int = 0, *, token: str | None = None
    ) -> Self:
        """Listen on `host:port` (0: any free port), with a fresh token unless one is given."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            sock = socket.create_server((host, port), family=family, backlog=128)
        except OSError as exc:
            raise ProcessError(f"cannot listen on {host}:{port}: {exc.strerror or exc}") from exc
        sock.setblocking(False)
        return cls(sock, token or secrets.token_urlsafe(24))

    @property
    def address(self) -> str:
        host, port = self._socket.getsockname()[:2]
        return join_address(host, port)

    async def wait_for(self, names: Collection[str], *, timeout_s: float) -> None:
        """Wait until a peer of each name has connected."""
        try:
            async with asyncio.timeout(timeout_s):
                while not all(name in self._waiting for name in names):
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            raise ProcessError(self._who_is_missing(names, timeout_s)) from None

    async def accept(
        self,
        specs: Mapping[str, ProcessSpec],
        *,
        timeout_s: float,
        start_timeout_s: float = 120.0,
        starters: Mapping[str, Starter] | None = None,
    ) -> list[Child]:
        """Wait for a peer of each name, have each run its spec's entry, wait until all are up."""
        await self.wait_for(specs, timeout_s=timeout_s)
        children = [
            await self._adopt(self._waiting.pop(name), specs[name], (starters or {}).get(name))
            for name in specs
        ]
        try:
            async with asyncio.TaskGroup() as starting:
                for child in children:
                    starting.create_task(child.wait_started(timeout_s=start_timeout_s))
        except BaseException as exc:
            await kill_all(children)
            if isinstance(exc, ExceptionGroup):
                raise exc.exceptions[0] from exc
            raise
        return children

    async def aclose(self) -> None:
        """Stop listening, and disconnect waiting processes. Children that were accepted stay. Idempotent."""
        tasks = [self._accepting, *self._handshakes]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._socket.close()
        for peer in self._waiting.values():
            peer.sock.close()
        self._waiting.clear()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _accept_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, address = await loop.sock_accept(self._socket)
            sock.setblocking(False)
            self._handshakes.begin(self._greet(sock, address[0]), name=f"greet {address[0]}")

    async def _greet(self, sock: socket.socket, host: str) -> None:
        """Let the peer prove that it knows the token, with limits on time and bytes."""
        try:
            notice_dead_peers(sock)
            async with asyncio.timeout(HANDSHAKE_S):
                peer = await self._identify(sock, host)
        except (_RefusedError, FrameError, OSError) as exc:  # TimeoutError is an OSError
            self._refused.append(f"{host}: {exc or 'it did not identify itself'}")
            payload = {"kind": "Refused", "message": str(exc)}
            with contextlib.suppress(OSError):
                await _send(sock, Frame(FrameKind.FAIL, payload=payload))
            sock.close()
        except BaseException:
            sock.close()
            raise
        else:
            former = self._waiting.pop(peer.name, None)
            if former is not None:  # the process was restarted: keep the latest
                former.sock.close()
            self._waiting[peer.name] = peer
            self._arrived.set()

    async def _identify(self, sock: socket.socket, host: str) -> _Peer:
        nonce = new_nonce()
        await _send(sock, Frame(FrameKind.CHALLENGE, payload={"nonce": nonce}))
        decoder = FrameDecoder(max_header_bytes=4096, max_buffer_bytes=0)
        frames: list[Frame] = []
        while not frames:
            count = await asyncio.get_running_loop().sock_recv_into(sock, decoder.target())
            if count == 0:
                raise _RefusedError("it hung up")
            frames = decoder.received(count)
        match frames[0].payload:
            case {"name": str(name), "pid": int(pid), "nonce": str(theirs), "proof": str(proof)}:
                if not is_proof(proof, self.token, "child", nonce, theirs, name, pid):
                    raise _RefusedError("it does not know the token")
                return _Peer(name, host, pid, theirs, sock)
            case _:
                raise _RefusedError("it did not identify itself")

    async def _adopt(self, peer: _Peer, spec: ProcessSpec, starter: Starter | None) -> Child:
        connection = Connection()
        body = RemoteProcess(
            f"pid {peer.pid}", peer.host, connection, pid=peer.pid, starter=starter
        )
        child = Child(spec, body, connection)
        connection.on_lost = lambda why: child.ended(ChildExit(reason=f"({peer.host}) {why}"))
        await asyncio.get_running_loop().create_connection(lambda: connection, sock=peer.sock)
        child.start(env=spec.environment(), proof=prove(self.token, "main", peer.nonce, spec.entry))
        return child

    def _who_is_missing(self, names: Collection[str], timeout_s: float) -> str:
        missing = [name for name in names if name not in self._waiting]
        others = sorted(set(self._waiting) - set(names))
        return (
            f"{len(missing)} of {len(names)} processes did not connect to {self.address} "
            f"within {timeout_s:g} s: {', '.join(missing)}"
            + (f"; others that did: {', '.join(others)}" if others else "")
            + (f"; refused: {'; '.join(self._refused[-3:])}" if self._refused else "")
        )


async def _send(sock: socket.socket, frame: Frame) -> None:
    for part in encode(frame):
        await asyncio.get_running_loop().sock_sendall(sock, part)


class KeptPort:
    """A free TCP port of this machine. Nobody gets it by chance until it is closed.

    Its socket is bound and never listens. The kernel gives such a port to no connection and to nobody who
    asks for any port, but a server may bind it: servers set SO_REUSEADDR, as this socket does.
    """

    def __init__(self, number: int = 0) -> None:
        """Any free port, or the port `number`, which another process may keep too."""
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind(("", number))
        except OSError:
            self._socket.close()
            raise
        self.number: int = self._socket.getsockname()[1]

    @property
    def is_free(self) -> bool:
        """Whether no process listens on the port. A server that was told to take this port is such a process."""
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                other.bind(("", self.number))
            except OSError:
                return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the port back. A process that listens on the port already keeps it."""
        self._socket.close()
