"""Servers, at an address or started by a command: one for each process that plays episodes, shared by these."""

import asyncio
import os
import shlex
import signal
import socket
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import aiohttp

from areal_sdk import ConfigError, EpisodeError
from areal_sdk_shared.servers import SharedServers

PORT = "{port}"
FIRST_LOOK_S = 0.05
"""Seconds until the first look whether a server answers; each later look waits twice as long, up to a second."""
HEALTH_S = 5.0
"""Seconds for a server that let a call wait too long to tell its health."""
LAST_WORDS = 500
"""Number of characters of a server's output that an error quotes."""


class Server:
    """A server: somebody else's, at `url`, or one that `command` starts in a process group of its own."""

    def __init__(self, url: str, command: str, *, start_timeout_s: float) -> None:
        self.command = command
        self.url = url
        self._start_timeout_s = start_timeout_s
        self._schema: Any = None
        self._asking = asyncio.Lock()
        self.is_healthy = False
        """Whether the server has answered, and was not killed since."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_lost(self) -> bool:
        """Whether the command has ended. A server at an address is never replaced."""
        return bool(self.command) and not self.is_running

    async def schema(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """The schemas of actions and observations, which the first episode asks for."""
        async with self._asking:
            if self._schema is None:
                self._schema = await ask()
            return self._schema

    async def start(self) -> None:
        """Start the command and wait until `/health` answers. Whatever fails, nothing is left running."""
        if not self.command:
            return
        timeout_s = self._start_timeout_s
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
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

    async def check(self) -> None:
        """Kill the command if its server does not tell its health: the next episode then starts another one."""
        if not self.is_running:
            return
        try:
            async with asyncio.timeout(HEALTH_S), aiohttp.ClientSession() as client:
                await client.get(f"{self.url}/health")
        except (TimeoutError, aiohttp.ClientError, OSError):
            self.kill()

    def kill(self) -> None:
        """Kill the process group. Idempotent."""
        self.is_healthy = False
        if (process := self._process) is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            self._output.close()

    async def aclose(self) -> None:
        self.kill()

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


SHARED: SharedServers[Server] = SharedServers()
"""The servers of a process, by address and command."""


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
