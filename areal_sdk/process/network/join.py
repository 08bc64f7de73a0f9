"""The child's side: connect to the main process over TCP and run the entry it names."""

import os
import socket
import time
from collections.abc import Mapping

from areal_sdk.errors import ProcessError
from areal_sdk.process.entry import receive_first, run_entry
from areal_sdk.process.frames import JSON, Frame, FrameKind, encode
from areal_sdk.process.network.handshake import (
    is_proof,
    new_nonce,
    notice_dead_peers,
    prove,
    split_address,
)


def connect_and_run(
    address: str, *, token: str, name: str, connect_timeout_s: float, start_timeout_s: float
) -> int:
    """Join the run at `address` as `name` and serve its entry; returns this process's exit code.

    The main process may start later than this one, so connecting is tried for `connect_timeout_s`. The main process
    then has `start_timeout_s` to send the entry, because it waits for the other processes.
    """
    sock = _reach(address, connect_timeout_s)
    notice_dead_peers(sock)
    sock.settimeout(start_timeout_s)
    start = introduce(sock, address, token=token, name=name, roles=("child", "main"))
    sock.settimeout(None)
    os.environ.update(start["env"])  # before anything reads it: the entry is not imported yet
    return run_entry(sock, start["entry"], start["args"])


def introduce(
    sock: socket.socket, address: str, *, token: str, name: str, roles: tuple[str, str]
) -> Mapping[str, JSON]:
    """Prove to the listener at `address` that this process is `name`, and have the listener prove that it knows the
    token too. Returns its answer.

    `roles` are the names that the proofs give to this side and to the listener.
    """
    ours, theirs = roles
    try:
        challenge = _expect(FrameKind.CHALLENGE, sock, address)
        nonce, pid = new_nonce(), os.getpid()
        proof = prove(token, ours, challenge.payload["nonce"], nonce, name, pid)
        identity = {"name": name, "pid": pid, "nonce": nonce, "proof": proof}
        for part in encode(Frame(FrameKind.IDENTIFY, payload=identity)):
            sock.sendall(part)
        start: Mapping[str, JSON] = _expect(FrameKind.START, sock, address).payload
    except TimeoutError:
        raise ProcessError(
            f"{address} did not start {name!r} within {sock.gettimeout():g} s"
        ) from None
    except OSError as exc:
        raise ProcessError(f"{address} broke the connection: {exc}") from exc
    if not is_proof(start["proof"], token, theirs, nonce, start["entry"]):
        raise ProcessError(f"{address} does not know the token, so its entry is not run")
    return start


def _reach(address: str, timeout_s: float) -> socket.socket:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return socket.create_connection(split_address(address), timeout=5.0)
        except OSError as exc:
            if time.monotonic() > deadline:
                raise ProcessError(
                    f"no process answers at {address} ({exc}): is the run started, "
                    "and does it listen on an address that this machine can reach?"
                ) from exc
            time.sleep(0.5)


def _expect(kind: FrameKind, sock: socket.socket, address: str) -> Frame:
    frame = receive_first(sock)
    if frame.kind is FrameKind.FAIL:
        raise ProcessError(f"{address} refused this process: {frame.payload['message']}")
    if frame.kind is not kind:
        raise ProcessError(f"{address} sent {frame.kind.value!r}: not a run of this SDK's version")
    return frame
