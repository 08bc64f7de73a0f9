"""Servers that commands start: one for each process that plays episodes, shared by these, ended with it."""

import asyncio
import atexit
import os
import shlex
import signal
import socket
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from contextlib import suppress
from weakref import WeakKeyDictionary

import aiohttp

from areal_sdk import ConfigError, EpisodeError

PORT = "{port}"
FIRST_LOOK_S = 0.05
"""Seconds until the first look whether a server answers; each later look waits twice as long, up to a second."""
LAST_WORDS = 500
"""Characters of a server's output that an error quotes."""


class Server:
    """A server in a process group of its own."""

    def __init__(self, command: str) -> None:
        self.command = command
        self.url = ""
        self.is_healthy = False
        """Whether it has answered, and was not killed since."""
        self._process: subprocess.Popen[bytes] | None = None
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self, *, timeout_s: float) -> None:
        """Start the command and wait until `/health` answers. Whatever fails, nothing is left running."""
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        words = [word.replace(PORT, str(port)) for word in shlex.split(self.command)]
        try:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - `atexit` kills it without a loop
                words,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as exc:
            self._output.close()
            raise ConfigError(
                f"[env.openenv] command {self.command!r} does not start: {exc}"
            ) from None
        try:
            async with asyncio.timeout(timeout_s):
                await self._until_healthy()
        except TimeoutError:
            raise self._fault(f"did not answer {self.url}/health within {timeout_s:g} s") from None
        finally:
            if not self.is_healthy:
                self.kill()

    def kill(self) -> None:
        """Kill the process group. Idempotent."""
        self.is_healthy = False
        if (process := self._process) is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._output.close()

    async def _until_healthy(self) -> None:
        wait_s = FIRST_LOOK_S
        async with aiohttp.ClientSession() as client:
            while not self.is_healthy:
                if not self.is_running:
                    assert self._process is not None
                    raise self._fault(f"ended with exit code {self._process.returncode}")
                with suppress(aiohttp.ClientError, OSError):
                    async with client.get(f"{self.url}/health") as reply:
                        self.is_healthy = reply.ok
                await asyncio.sleep(0.0 if self.is_healthy else wait_s)
                wait_s = min(1.0, 2.0 * wait_s)

    def _fault(self, how: str) -> EpisodeError:
        end = self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, end - LAST_WORDS))
        words = self._output.read().decode(errors="replace").strip()
        return EpisodeError.infrastructure(
            f"OpenEnv server {self.command!r} {how}{f'; it wrote: {words}' if words else ''}"
        )


class _Shared:
    """The server of one command in one event loop, which closes its asynchronous generators when it ends."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.server: Server | None = None
        self.holder: AsyncGenerator[Server, None] | None = None


_of_loop: "WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, _Shared]]" = WeakKeyDictionary()


async def shared_server(command: str, *, timeout_s: float) -> Server:
    """The running server of `command`: started if there is none, or if the last one has ended."""
    shared = _of_loop.setdefault(asyncio.get_running_loop(), {}).setdefault(command, _Shared())
    async with shared.lock:  # episodes that begin together start one server
        if shared.server is not None and shared.server.is_running:
            return shared.server
        if shared.holder is not None:
            await shared.holder.aclose()
        server = Server(command)
        await server.start(timeout_s=timeout_s)
        shared.server, shared.holder = server, _held(server)
        return await anext(shared.holder)


async def close_shared_servers() -> None:
    """End those of this event loop now."""
    for shared in _of_loop.pop(asyncio.get_running_loop(), {}).values():
        if shared.holder is not None:
            await shared.holder.aclose()


async def _held(server: Server) -> AsyncGenerator[Server, None]:
    try:
        yield server
    finally:
        server.kill()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@atexit.register
def _kill_all() -> None:
    """Kill servers whose event loop was never closed."""
    for of_loop in list(_of_loop.values()):
        for shared in of_loop.values():
            if shared.server is not None:
                shared.server.kill()
