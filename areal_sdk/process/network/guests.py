"""A child that other processes than the main one ask too: they connect to it over TCP.

The child opens a `GuestDoor`; a guest calls `visit`, and has the same `Child` to call as the main process.
"""

import asyncio
import socket
import threading
from contextlib import suppress

from areal_sdk.errors import ProcessError
from areal_sdk.process.channel import Channel
from areal_sdk.process.child import Child
from areal_sdk.process.connection import Connection
from areal_sdk.process.entry import receive_first
from areal_sdk.process.frames import Frame, FrameError, FrameKind, encode
from areal_sdk.process.network.handshake import (
    HANDSHAKE_S,
    is_proof,
    new_nonce,
    notice_dead_peers,
    prove,
    split_address,
)
from areal_sdk.process.network.join import introduce
from areal_sdk.process.network.listen import RemoteProcess
from areal_sdk.process.spec import ChildExit, ProcessSpec
from areal_sdk.process.threads import in_thread

_GUEST = "guest"
_HOST = "host"


class GuestDoor:
    """Admits guests that know the token to a child's channel. Runs in threads until the child ends."""

    def __init__(self, channel: Channel, *, token: str, host: str = "127.0.0.1") -> None:
        self._channel = channel
        self._token = token
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=128)
        threading.Thread(target=self._accept, name="guest-door", daemon=True).start()

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    def _accept(self) -> None:
        while True:
            sock, _ = self._socket.accept()
            threading.Thread(target=self._greet, args=(sock,), name="greet", daemon=True).start()

    def _greet(self, sock: socket.socket) -> None:
        try:
            sock.settimeout(HANDSHAKE_S)
            notice_dead_peers(sock)
            nonce = new_nonce()
            _send(sock, Frame(FrameKind.CHALLENGE, payload={"nonce": nonce}))
            match receive_first(sock).payload:
                case {
                    "name": str(name),
                    "pid": int(pid),
                    "nonce": str(theirs),
                    "proof": str(proof),
                }:
                    facts = (nonce, theirs, name, pid)
                case _:
                    raise FrameError("it did not identify itself")
            if not is_proof(proof, self._token, _GUEST, *facts):
                raise FrameError("it does not know the token")
            welcome = {"entry": "", "proof": prove(self._token, _HOST, theirs, "")}
            _send(sock, Frame(FrameKind.START, payload=welcome))
            sock.settimeout(None)
            self._channel.admit(sock)
        except (OSError, FrameError, SystemExit) as exc:  # SystemExit: it hung up
            with suppress(OSError):
                _send(sock, Frame(FrameKind.FAIL, payload={"kind": "Refused", "message": str(exc)}))
            sock.close()


async def visit(address: str, *, token: str, name: str, host: str, timeout_s: float) -> Child:
    """Connect to the process `host` at `address` as the guest `name`. Returns the process, ready to be called."""
    sock = await in_thread(
        lambda: _introduced(address, token, name, timeout_s), name=f"visit {host}"
    )
    connection = Connection()
    body = RemoteProcess(host, address, connection)
    child = Child(ProcessSpec(host, ""), body, connection)
    connection.on_lost = lambda why: child.ended(ChildExit(reason=f"({address}) {why}"))
    await asyncio.get_running_loop().create_connection(lambda: connection, sock=sock)
    return child


def _introduced(address: str, token: str, name: str, timeout_s: float) -> socket.socket:
    try:
        sock = socket.create_connection(split_address(address), timeout=timeout_s)
    except OSError as exc:
        raise ProcessError(f"no process answers at {address} ({exc})") from exc
    try:
        notice_dead_peers(sock)
        introduce(sock, address, token=token, name=name, roles=(_GUEST, _HOST))
    except BaseException:
        sock.close()
        raise
    sock.setblocking(False)
    return sock


def _send(sock: socket.socket, frame: Frame) -> None:
    for part in encode(frame):
        sock.sendall(part)
