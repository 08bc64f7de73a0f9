"""The last step into a sandbox, as a script: sets limits, gives up privileges, becomes the program.

The supervisor passes the text of this file to `python -c`, since the file does not exist inside. The
first argument is an order in JSON. What is written to `status_fd` comes before any code of the program
runs, and the program cannot write there.
"""

import ctypes
import json
import os
import resource
import struct
import sys
from typing import Any

_PR_SET_KEEPCAPS = 8
_PR_SET_SECCOMP = 22
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_CAP_DAC_READ_SEARCH = 2


def main() -> None:
    order: dict[str, Any] = json.loads(sys.argv[1])
    status = int(order["status_fd"])
    try:
        listen = order["listen"]
        channel = {int(listen[0])} if listen else set()
        _close_all_but({0, 1, 2, status, *channel, *order["keep_fds"]})
        os.set_inheritable(status, False)
        if listen:
            _hand_out_listener(*listen)
        libc = ctypes.CDLL(None, use_errno=True)
        for name, value in order["rlimits"].items():
            _limit(name, int(value))
        if order["uid"]:
            _become(libc, int(order["uid"]), keeps_reading=order["keeps_reading"])
        _prctl(libc, _PR_SET_NO_NEW_PRIVS, 1)
        if order["filter"]:
            _filter_syscalls(libc, bytes.fromhex(order["filter"]))
        if order["directory"]:
            os.chdir(order["directory"])
        os.write(status, b"started\n")
        os.execvpe(order["words"][0], order["words"], order["env"])
    except BaseException as exc:  # noqa: BLE001 - the supervisor reports it
        os.write(status, f"{type(exc).__name__}: {exc}".encode(errors="replace"))
        os._exit(1)


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                continue  # the descriptor of the listing itself


def _hand_out_listener(channel: int, host: str, port: int) -> None:
    """Listen in the network of the sandbox, and give the socket to who stands outside."""
    import socket  # most programs have no network, and need not wait for it

    with socket.socket(fileno=channel) as outside, socket.create_server((host, port)) as listener:
        socket.send_fds(outside, [b"1"], [listener.fileno()])


def _limit(name: str, value: int) -> None:
    kind = getattr(resource, f"RLIMIT_{name}")
    hard = resource.getrlimit(kind)[1]
    most = value if hard == resource.RLIM_INFINITY else min(value, hard)
    # CPU: SIGXCPU at the soft limit says why it ended; the hard one ends what ignores it.
    resource.setrlimit(kind, (most, most + 1 if name == "CPU" and most < hard % 2**63 else most))


def _become(libc: ctypes.CDLL, uid: int, *, keeps_reading: bool) -> None:
    """Be user `uid`, who owns nothing. `keeps_reading`: files that only root can read stay readable,
    since the interpreter may be one of them."""
    if keeps_reading:
        _prctl(libc, _PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    if keeps_reading:
        mask = 1 << _CAP_DAC_READ_SEARCH
        header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
        if libc.capset(header, struct.pack("6I", mask, mask, mask, 0, 0, 0)):
            raise OSError(ctypes.get_errno(), "capset")
        _prctl(libc, _PR_CAP_AMBIENT, 2, _CAP_DAC_READ_SEARCH)


def _filter_syscalls(libc: ctypes.CDLL, program: bytes) -> None:
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer))
    _prctl(libc, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.c_char_p(header))


def _prctl(libc: ctypes.CDLL, option: int, first: int, second: object = 0) -> None:
    if libc.prctl(option, ctypes.c_ulong(first), second, 0, 0):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


if __name__ == "__main__":
    main()
