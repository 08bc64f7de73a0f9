"""The start of a child process: connect to the main process and run one entry with a channel.

`main` is the command line of a local child, whose socket is inherited. `connect_and_run` is for a
child on any machine: it connects over TCP, and both sides prove that they know the run's token.
"""

import ctypes
import faulthandler
import importlib
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from areal_sdk.errors import ProcessError
from areal_sdk.process.channel import Channel, ChannelClosedError
from areal_sdk.process.frames import JSON, Frame, FrameDecoder, FrameKind, encode
from areal_sdk.process.handshake import (
    is_proof,
    new_nonce,
    notice_dead_peers,
    prove,
    split_address,
)

Entry = Callable[[Channel, Mapping[str, JSON]], None]

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """The command line of `spawn`: package root, socket, main process's pid, name."""
    _, descriptor, parent, _name = sys.argv[1:5]
    die_with_parent(int(parent))
    sock = socket.socket(fileno=int(descriptor))
    sock.set_inheritable(False)  # what the entry starts must not keep the connection open
    start = receive_first(sock)
    if start.payload["sys_path"] is not None:
        sys.path[:] = start.payload["sys_path"]
    sys.exit(run_entry(sock, start.payload["entry"], start.payload["args"]))


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the main process dies, even by SIGKILL."""
    if sys.platform != "linux":
        return  # elsewhere the end of the connection ends the child
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the main process died while this one was starting")


def receive_first(sock: socket.socket) -> Frame:
    """The first frame of the main process, which sends one and then waits for an answer."""
    decoder = FrameDecoder()
    while True:
        with decoder.target() as target:
            count = sock.recv_into(target)
        if count == 0:
            raise SystemExit("the main process went away before it said what to run")
        frames = decoder.received(count)
        if frames:
            assert len(frames) == 1
            assert not decoder.is_mid_frame
            return frames[0]


def run_entry(sock: socket.socket, entry: str, args: Mapping[str, JSON]) -> int:
    """Import `entry`, call it, and return the exit code of this process."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # sent after a missed deadline
    with Channel(sock) as channel:
        try:
            resolve(entry)(channel, args)
        except ChannelClosedError:
            return 0
        except Exception as exc:  # noqa: BLE001 - reported to the main process
            traceback.print_exc()
            channel.fail_start(exc)
            return 1
    return 0


def resolve(reference: str) -> Any:
    """The object that `"package.module:attribute"` names."""
    module_name, separator, attribute = reference.partition(":")
    if not separator:
        raise ValueError(f"an entry is 'package.module:function', not {reference!r}")
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found


def connect_and_run(
    address: str, *, token: str, name: str, connect_timeout_s: float, start_timeout_s: float
) -> int:
    """Join the run at `address` as `name` and serve its entry; returns this process's exit code.

    The main process may start later than this one, so connecting is tried for `connect_timeout_s`.
    It may then wait up to `start_timeout_s` for the other processes.
    """
    sock = _reach(address, connect_timeout_s)
    notice_dead_peers(sock)
    sock.settimeout(start_timeout_s)
    try:
        challenge = _expect(FrameKind.CHALLENGE, sock, address)
        nonce, pid = new_nonce(), os.getpid()
        proof = prove(token, "child", challenge.payload["nonce"], nonce, name, pid)
        identity = {"name": name, "pid": pid, "nonce": nonce, "proof": proof}
        for part in encode(Frame(FrameKind.IDENTIFY, payload=identity)):
            sock.sendall(part)
        start = _expect(FrameKind.START, sock, address).payload
    except TimeoutError:
        raise ProcessError(
            f"{address} did not start {name!r} within {start_timeout_s:g} s"
        ) from None
    except OSError as exc:
        raise ProcessError(f"{address} broke the connection: {exc}") from exc
    if not is_proof(start["proof"], token, "main", nonce, start["entry"]):
        raise ProcessError(f"{address} does not know the token, so its entry is not run")
    sock.settimeout(None)
    os.environ.update(start["env"])  # before anything reads it: the entry is not imported yet
    return run_entry(sock, start["entry"], start["args"])


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
