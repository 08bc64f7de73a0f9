"""Carries out orders inside a sandbox, one after another, as a script that is the sandbox's program.

Orders come over a socket that no other process of the sandbox has: a line of JSON each, answered with a line of JSON.
The programs of an agent are the same user as this one. They can end or stop it, which the other side notices, but not
speak for it: its memory and its descriptors are closed to them.
"""

import base64
import contextlib
import ctypes
import json
import os
import selectors
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

_PR_SET_DUMPABLE = 4
_KILL_S = 10.0
"""Seconds for the kernel to end processes that were killed."""
_LOOK_EVERY_S = 0.01
JSON = dict[str, Any]


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    with socket.socket(fileno=int(sys.argv[1])) as channel, channel.makefile("rwb") as orders:
        os.set_inheritable(channel.fileno(), False)
        for line in orders:
            try:
                answer = carry_out(json.loads(line))
            except Exception as exc:  # noqa: BLE001 - the other side decides what it means
                answer = {"error": f"{type(exc).__name__}: {exc}"}
            orders.write(json.dumps(answer).encode() + b"\n")
            orders.flush()


def carry_out(order: JSON) -> JSON:
    known: dict[str, Callable[..., JSON]] = {
        "put": put,
        "run": run,
        "end_others": end_others,
        "clear": clear,
        "read": read,
    }
    return known[order.pop("do")](**order)


def put(directory: str, folders: list[str], files: list[Any], links: list[Any]) -> JSON:
    """Write a tree below `directory`. Files that are there already are replaced."""
    os.makedirs(directory, exist_ok=True)
    for name in folders:
        os.makedirs(os.path.join(directory, name), exist_ok=True)
    for name, mode, content in files:
        path = os.path.join(directory, name)
        _remove(path)
        with open(path, "xb") as file:
            file.write(base64.b64decode(content))
        os.chmod(path, mode)
    for name, target in links:
        path = os.path.join(directory, name)
        _remove(path)
        os.symlink(target, path)
    return {}


def run(words: list[str], cwd: str, env: dict[str, str], timeout_s: float, keep_kb: int) -> JSON:
    """Run a program to its end. Its output is what came until then: of a long one, the end.

    `env` is added to the sandbox's plain environment. Programs that it left running go on, and what they write is lost.
    """
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    try:
        process = subprocess.Popen(
            words,
            cwd=cwd,
            env={**os.environ, **env},
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
            start_new_session=True,
        )
    except OSError as exc:
        os.close(reader)
        return {"code": 127, "output": _text(f"{exc}\n".encode()), "written": 0, "late": False}
    finally:
        os.close(writer)
    output = _Output(reader, keep_kb << 10)
    is_over = _wait(process, output, time.monotonic() + timeout_s)
    with contextlib.suppress(OSError):
        if not is_over:
            os.killpg(process.pid, signal.SIGKILL)
    code = process.wait(_KILL_S)
    output.read()
    os.close(reader)
    kept = bytes(output.kept)
    return {"code": code, "output": _text(kept), "written": output.written, "late": not is_over}


class _Output:
    """The end of what a pipe brought."""

    def __init__(self, reader: int, most: int) -> None:
        self.kept = bytearray()
        self.written = 0
        self._reader = reader
        self._most = most

    def read(self) -> None:
        """Take what is there, but no more than twice the kept length at once: others may write for ever."""
        for _ in range(2 * self._most // 65536 + 1):
            try:
                data = os.read(self._reader, 65536)
            except BlockingIOError:
                return
            if not data:
                return
            self.written += len(data)
            self.kept += data
            del self.kept[: max(0, len(self.kept) - self._most)]


def _wait(process: "subprocess.Popen[bytes]", output: _Output, deadline: float) -> bool:
    """Whether the program ended by itself before the deadline."""
    with selectors.DefaultSelector() as selector:
        end = os.pidfd_open(process.pid)
        try:
            selector.register(end, selectors.EVENT_READ)
            selector.register(output._reader, selectors.EVENT_READ)
            while (left_s := deadline - time.monotonic()) > 0:
                ready = [key.fd for key, _ in selector.select(left_s)]
                if end in ready:
                    return True
                before = output.written
                output.read()
                if ready and output.written == before:  # all writers are gone, but the program
                    selector.unregister(output._reader)
        finally:
            os.close(end)
    return False


def end_others() -> JSON:
    """Kill all other processes of the sandbox, but the first, which belongs to the sandbox itself."""
    deadline = time.monotonic() + _KILL_S
    while True:
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        others = [n for n in os.listdir("/proc") if n.isdigit() and int(n) not in (1, os.getpid())]
        if not others:
            return {}
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(others)} processes did not end within {_KILL_S:g} s")
        time.sleep(_LOOK_EVERY_S)


def clear(directory: str) -> JSON:
    """Empty a directory, also one with folders that nobody may enter."""
    for where, folders, _ in os.walk(directory):
        for name in folders:
            path = os.path.join(where, name)
            if not os.path.islink(path):
                os.chmod(path, 0o700)
    for name in os.listdir(directory):
        _remove(os.path.join(directory, name))
    return {}


def read(path: str, most: int) -> JSON:
    """The content of a file that is no link; null if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return {"content": None}
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError(f"{path} is no file")
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path} has more than {most} bytes")
    return {"content": _text(content)}


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


if __name__ == "__main__":
    main()
