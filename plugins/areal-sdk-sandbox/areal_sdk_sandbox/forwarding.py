"""The one address outside that a program in a sandbox reaches.

A sandbox has a network of its own with nothing in it. The launcher opens a listening socket there and hands
it out over a pair of sockets. Whoever accepts on that socket stands outside, so no process of ours runs
inside, and no other address becomes reachable.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

INNER_HOST, INNER_PORT = "127.0.0.1", 20000
INNER_ADDRESS = f"{INNER_HOST}:{INNER_PORT}"
"""The address that a program in a sandbox calls to reach the address outside."""

MAX_CONNECTIONS = 64
"""Number of connections that one program may have at one time. More wait."""
_CHUNK = 1 << 16

Address = tuple[str, int]


@asynccontextmanager
async def forwarded(address: Address) -> AsyncIterator[int]:
    """A descriptor for the launcher. What connects inside is connected with `address` until the end."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    forwarder = asyncio.create_task(_forward_all(ours, address), name=f"forwarder to {address}")
    try:
        yield theirs.fileno()
    finally:
        theirs.close()
        forwarder.cancel()
        await asyncio.gather(forwarder, return_exceptions=True)
        ours.close()


async def _forward_all(ours: socket.socket, address: Address) -> None:
    listener = await _received_socket(ours)
    if listener is None:
        return  # the sandbox did not start
    loop = asyncio.get_running_loop()
    slots = asyncio.Semaphore(MAX_CONNECTIONS)
    with listener:
        async with asyncio.TaskGroup() as connections:
            while True:
                await slots.acquire()
                inside, _ = await loop.sock_accept(listener)
                task = connections.create_task(_forward(inside, address))
                task.add_done_callback(lambda _: slots.release())


async def _received_socket(ours: socket.socket) -> socket.socket | None:
    loop = asyncio.get_running_loop()
    is_readable = asyncio.Event()
    loop.add_reader(ours.fileno(), is_readable.set)
    try:
        await is_readable.wait()
    finally:
        loop.remove_reader(ours.fileno())
    _, descriptors, _, _ = socket.recv_fds(ours, 1, 1)
    if not descriptors:
        return None
    listener = socket.socket(fileno=descriptors[0])
    listener.setblocking(False)
    return listener


async def _forward(inside: socket.socket, address: Address) -> None:
    """Carry bytes both ways. A connection that breaks is the program's to notice, as in any network."""
    loop = asyncio.get_running_loop()
    with inside, contextlib.suppress(OSError):
        inside.setblocking(False)
        found = await loop.getaddrinfo(*address, type=socket.SOCK_STREAM)
        family, kind, protocol, _, place = found[0]
        with socket.socket(family, kind, protocol) as outside:
            outside.setblocking(False)
            await loop.sock_connect(outside, place)
            both = (_carry(inside, outside), _carry(outside, inside))
            tasks = [asyncio.create_task(one) for one in both]
            try:
                await asyncio.gather(*tasks)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)


async def _carry(source: socket.socket, target: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, _CHUNK):
        await loop.sock_sendall(target, data)
    target.shutdown(socket.SHUT_WR)
