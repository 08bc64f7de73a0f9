"""The start of a child process: its end of the connection, and the entry that it runs.

`main` is the command line of a local child, whose socket is inherited. A child on any machine comes
in by `network.join`.
"""

import ctypes
import faulthandler
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from areal_sdk.process.channel import Channel, ChannelClosedError
from areal_sdk.process.frames import JSON, Frame, FrameDecoder
from areal_sdk.process.memory import no_collections

Entry = Callable[[Channel, Mapping[str, JSON]], None]

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Run a child that `spawn` started. The arguments: package root, socket, main process's pid, name."""
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
            with no_collections():
                run = resolve(entry)
            run(channel, args)
        except ChannelClosedError:
            pass
        except Exception as exc:  # noqa: BLE001 - reported to the main process
            traceback.print_exc()
            channel.fail_start(exc)
            return 1
        was_given_up = channel.is_closed and not channel.is_dismissed
    return os.EX_UNAVAILABLE if was_given_up else 0


def resolve(reference: str) -> Any:
    """The object that `"package.module:attribute"` names."""
    module_name, separator, attribute = reference.partition(":")
    if not separator:
        raise ValueError(f"an entry is 'package.module:function', not {reference!r}")
    found: Any = importlib.import_module(module_name)
    for part in attribute.split("."):
        found = getattr(found, part)
    return found
