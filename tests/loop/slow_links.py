"""A launcher whose processes reach the main process over slow links: a TCP proxy stands between them.

    child -- TCP --> proxy: delay, bandwidth --> listener of the main process

The kernel here has no netem. A link carries both directions, each with its own bandwidth.
"""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import areal_sdk
from areal_sdk.launcher import LauncherSetup, rank_environment
from areal_sdk.process import Child, ProcessSpec
from areal_sdk.process.network.handshake import TOKEN_VARIABLE, split_address
from areal_sdk.process.network.listen import KeptPort, Listener, Starter
from areal_sdk.process.threads import BackgroundTasks

CHUNK_BYTES = 16 * 1024
IN_FLIGHT = 64
"""Chunks that a link holds: its sender waits for more room."""
START_S = 240.0


class SlowLinks:
    """A proxy to `address`. Each connection through it is a link of its own."""

    def __init__(
        self, address: str, *, delay_s: float, jitter_s: float, bytes_per_s: float
    ) -> None:
        self._to = split_address(address)
        self._delay_s, self._jitter_s, self._bytes_per_s = delay_s, jitter_s, bytes_per_s
        self._random = random.Random(0)
        self._pumps = BackgroundTasks()

    async def open(self) -> str:
        """The address to connect to in place of the other."""
        self._server = await asyncio.start_server(self._link, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return f"127.0.0.1:{port}"

    async def aclose(self) -> None:
        self._server.close()
        await self._pumps.cancel()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(*self._to)
        for source, sink in ((reader, there_writer), (there_reader, writer)):
            on_the_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(IN_FLIGHT)
            self._pumps.begin(self._take_in(source, on_the_way), name="link in")
            self._pumps.begin(self._give_out(on_the_way, sink), name="link out")

    async def _take_in(
        self, source: asyncio.StreamReader, on_the_way: "asyncio.Queue[tuple[float, bytes]]"
    ) -> None:
        clock, free_at, due = asyncio.get_running_loop().time, 0.0, 0.0
        chunk = b"first"
        while chunk:
            try:
                chunk = await source.read(CHUNK_BYTES)
            except OSError:
                chunk = b""
            free_at = max(clock(), free_at) + len(chunk) / self._bytes_per_s
            late_s = self._delay_s + self._random.uniform(0, self._jitter_s)
            due = max(due, free_at + late_s)  # in order, as TCP delivers
            await on_the_way.put((due, chunk))

    async def _give_out(
        self, on_the_way: "asyncio.Queue[tuple[float, bytes]]", sink: asyncio.StreamWriter
    ) -> None:
        clock = asyncio.get_running_loop().time
        chunk = b"first"
        while chunk:
            due, chunk = await on_the_way.get()
            await asyncio.sleep(due - clock())
            try:
                sink.write(chunk)
                await sink.drain()
            except OSError:
                break
        sink.close()


class SlowLauncher:
    """Starts every process on this machine, each at the other end of a slow link."""

    host = "127.0.0.1"

    def __init__(self, listener: Listener, links: SlowLinks, address: str, log_dir: Path) -> None:
        self._listener, self._links, self._address = listener, links, address
        self._log_dir = log_dir

    async def launch(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        with KeptPort() as kept:
            placed = {f"{spec.name}@{kept.number}": spec for spec in specs}
            starters = {
                name: self._start(
                    name,
                    spec,
                    rank_environment(rank, len(specs), master=self.host, port=kept.number),
                )
                for rank, (name, spec) in enumerate(placed.items())
            }
            return await self._listener.accept(
                placed, timeout_s=START_S, start_timeout_s=START_S, starters=starters
            )

    def _start(self, name: str, spec: ProcessSpec, ranks: Mapping[str, str]) -> Starter:
        log = self._log_dir / f"{spec.name}.log"
        command = [sys.executable, "-m", "areal_sdk.join", self._address, name]
        env = {**os.environ, **ranks, TOKEN_VARIABLE: self._listener.token}
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
        return Starter(log, process.send_signal)

    async def aclose(self) -> None:
        await self._listener.aclose()
        await self._links.aclose()


async def open_slow(
    setup: LauncherSetup,
    *,
    delay_s: float = 0.05,
    jitter_s: float = 0.01,
    bytes_per_s: float = 1e6,
) -> SlowLauncher:
    listener = await Listener.open()
    links = SlowLinks(listener.address, delay_s=delay_s, jitter_s=jitter_s, bytes_per_s=bytes_per_s)
    return SlowLauncher(listener, links, await links.open(), setup.log_dir)


@areal_sdk.hookimpl
def register_launchers(register: Callable[[str, object], None]) -> None:
    register("slow", open_slow)
