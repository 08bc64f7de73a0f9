"""Server processes on this machine: start, log, end.

A server may be several processes. They share one session, which is signalled as a whole. A server
started for a run dies with the run, however the run ends, unless it is asked to outlive its starter.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from areal_sdk.errors import EngineError
from areal_sdk.process.network.listen import KeptPort
from areal_sdk.process.spec import open_log

_NUM_LOG_LINES = 12
_NUM_LINE_CHARACTERS = 300
"""Maximum number of characters shown of a line, since some servers write all their settings into one line."""
_GUARD = Path(__file__).with_name("guard.py")


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """The command line of a server, and environment variables besides those of this process."""

    arguments: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)


class RunningServer(Protocol):
    """A server that its engine started, here or elsewhere."""

    @property
    def address(self) -> str: ...

    @property
    def pid(self) -> int:
        """Id of the process to signal."""

    @property
    def log_path(self) -> Path: ...

    @property
    def is_running(self) -> bool: ...

    def last_lines(self) -> str:
        """The last lines of the process's log, if this machine sees the log."""

    def signal(self, number: int) -> None: ...

    async def stop(self, *, grace_s: float = 5.0) -> None:
        """End the server. Returns when the server is gone; safe to call twice."""


@dataclass(slots=True)
class ServerProcess:
    """A server on this machine. `process` is None when another command started it."""

    address: str
    pid: int
    log_path: Path
    process: subprocess.Popen[bytes] | None = None
    _is_stopped: bool = False

    @property
    def is_running(self) -> bool:
        return not self._is_stopped and _is_alive(self.pid)

    def last_lines(self) -> str:
        return tail(self.log_path)

    def signal(self, number: int) -> None:
        """Signal every process of the server. After `stop` this does nothing: another process may have its id."""
        if self._is_stopped:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    async def stop(self, *, grace_s: float = 5.0) -> None:
        """End the server by SIGTERM, then by SIGKILL. Returns when the server is gone; safe to call twice."""
        self.signal(signal.SIGCONT)  # a stopped process would never see the rest
        self.signal(signal.SIGTERM)
        if not await self._is_gone_within(grace_s):
            self.signal(signal.SIGKILL)
            if not await self._is_gone_within(5.0):
                raise EngineError(f"server process {self.pid} did not die; log: {self.log_path}")
        self.signal(signal.SIGKILL)  # children that outlived the first process of the group
        self._is_stopped = True
        if self.process is not None:
            self.process.wait(timeout=5.0)  # it is dead already: this only takes note of it

    async def _is_gone_within(self, seconds: float) -> bool:
        ends_at = time.monotonic() + seconds
        while self.is_running and time.monotonic() < ends_at:  # noqa: ASYNC110 - no event to wait on
            await asyncio.sleep(0.05)
        return not self.is_running


def start_process(
    command: ServerCommand, *, port: int, log_path: Path, outlives_us: bool = False
) -> ServerProcess:
    """Start a server that listens on `port`; it is ready some seconds later (`wait_until_ready`).

    Unless it `outlives_us`, the kernel ends the server with the *thread* that called this. So call this in a thread that
    lives as long as the server should, such as the event loop's.
    """
    arguments = [*command.arguments]
    if not outlives_us:
        arguments = [sys.executable, "-I", str(_GUARD), str(os.getpid()), *arguments]
    with open_log(log_path) as log:
        try:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **command.variables},
                start_new_session=True,
            )
        except OSError as exc:
            raise EngineError(f"{command.arguments[0]} could not be started: {exc}") from exc
    return ServerProcess(f"http://127.0.0.1:{port}", process.pid, log_path, process)


class ServerStarter(ABC):
    """Starts the servers of one engine."""

    @abstractmethod
    async def start_all(self) -> Sequence[RunningServer]:
        """Start every server; they are ready some seconds later. EngineError if one cannot be started."""

    @abstractmethod
    async def restart(self, server: RunningServer) -> RunningServer:
        """A new server in place of one that ended, perhaps at another address."""

    def close(self) -> None:  # noqa: B027 - most keep nothing
        """Free the resources that are kept for restarts. The servers are stopped already."""


class ServerLauncher(ServerStarter):
    """Starts the `count` servers of one engine on this machine; they die with this process."""

    def __init__(self, log_dir: Path, *, name: str, count: int = 1) -> None:
        self.count = count
        self._log_dir = log_dir
        self._name = name
        self._ports: list[KeptPort] = []

    @abstractmethod
    def command(self, index: int, *, port: int) -> ServerCommand:
        """The command line of server `index`, which listens on `port` of this machine."""

    async def start_all(self) -> Sequence[RunningServer]:
        self._ports = [KeptPort() for _ in range(self.count)]
        return [self._start(index, port.number) for index, port in enumerate(self._ports)]

    async def restart(self, server: RunningServer) -> RunningServer:
        """Start the server again with the same index. It keeps its address unless somebody else
        listens there by now."""
        index = [self._log_path(index) for index in range(self.count)].index(server.log_path)
        if not self._ports[index].is_free:
            self._ports[index].close()
            self._ports[index] = KeptPort()
        return self._start(index, self._ports[index].number)

    def close(self) -> None:
        while self._ports:
            self._ports.pop().close()

    def _start(self, index: int, port: int) -> ServerProcess:
        command = self.command(index, port=port)
        return start_process(command, port=port, log_path=self._log_path(index))

    def _log_path(self, index: int) -> Path:
        return self._log_dir / f"{self._name}-{index}.log"


def tail(log_path: Path) -> str:
    """The last lines of a log; empty if this machine does not see it."""
    try:
        lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return "\n".join(line[:_NUM_LINE_CHARACTERS] for line in lines[-_NUM_LOG_LINES:])


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
