"""Runs a program that reaches one port of this machine and nothing else.

    async with only_port(8000) as prefix:      # prefix + the program's own command

The program gets a network of its own with a loopback interface alone; its port is handed on through a
socket in a file. It needs Linux with user namespaces: without them the prefix is empty.
"""

import asyncio
import fcntl
import os
import shutil
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]

_SIOCSIFFLAGS = 0x8914
_UP_AND_RUNNING = 0x1 | 0x40


@asynccontextmanager
async def only_port(port: int) -> AsyncIterator[list[str]]:
    unshare = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--net", "--map-root-user"]
    if not await _works(unshare):
        print(
            "this machine gives programs no network of their own: nothing but settings holds them"
        )
        yield []
        return
    with TemporaryDirectory(prefix="areal-sdk-port-") as directory:
        path = Path(directory) / "port"
        out = partial(_forward, partial(asyncio.open_connection, "127.0.0.1", port))
        async with await asyncio.start_unix_server(out, path):
            yield [*unshare, sys.executable, __file__, str(path), str(port)]


async def _works(unshare: list[str]) -> bool:
    if shutil.which("unshare") is None:
        return False
    process = await asyncio.create_subprocess_exec(
        *unshare, "true", stderr=asyncio.subprocess.DEVNULL
    )
    return await process.wait() == 0


async def _forward(
    connect: Connect, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Both directions of one connection, until each side has ended its own."""
    try:
        other_reader, other_writer = await connect()
    except OSError:
        writer.close()
        return
    await asyncio.gather(_pipe(reader, other_writer), _pipe(other_reader, writer))


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.close()


async def _inside(path: str, port: int, command: list[str]) -> int:
    """Serve the same port in the network of its own, and run the program there."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh", b"lo", _UP_AND_RUNNING)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)
    forward = partial(_forward, partial(asyncio.open_unix_connection, path))
    async with await asyncio.start_server(forward, "127.0.0.1", port):
        process = await asyncio.create_subprocess_exec(*command)
        return await process.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(_inside(sys.argv[1], int(sys.argv[2]), sys.argv[3:])))
