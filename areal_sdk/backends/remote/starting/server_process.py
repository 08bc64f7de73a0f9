"""The process beside a placed server: starts the server on its machine, and ends with the run.

    main process: PlacedServer -- frames --> this process -- starts, watches --> the server
                                             Relay <-- weights, where the machine does not see their file

The main process compares what each machine has installed before it asks for the start.
"""

import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from areal_sdk.backends.remote.starting.processes import ServerCommand, ServerProcess, start_process
from areal_sdk.backends.remote.weights.relay import Relay
from areal_sdk.errors import ConfigError
from areal_sdk.process import JSON, Channel
from areal_sdk.process.network.handshake import join_address
from areal_sdk.process.network.listen import KeptPort
from areal_sdk.process.services import Answer, Answering, Service
from areal_sdk.process.user_code import load_user_object

ENTRY = "areal_sdk.backends.remote.starting.server_process:main"
WATCH_EVERY_S = 0.5
"""Seconds after which a lost server is noticed if no call comes."""
STOP_S = 5.0
"""Seconds for a server to end by itself before it is killed."""


@dataclass(frozen=True, slots=True)
class LocalServer:
    """One server as its machine would start it."""

    command: ServerCommand
    software: Mapping[str, str]
    """Installed versions by name. All servers of an engine must have the same."""


class MakeServer(Protocol):
    """Function that finds out, on the server's machine, how the server is started. ConfigError, with the cure, if it
    cannot be started."""

    def __call__(
        self, args: Mapping[str, JSON], *, model: Path, host: str, port: int
    ) -> LocalServer: ...


def main(channel: Channel, args: Mapping[str, JSON]) -> None:
    """The entry. `args` as `PlacedServers` makes them; a launcher's variables say where this machine is reached."""
    options: Mapping[str, Any] = args
    model, host, port = Path(options["model"]), os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]
    if not (model / "config.json").is_file():
        raise ConfigError(
            f"the machine {host} has no model in {model}: every machine needs it at the same path"
        )
    make: MakeServer = load_user_object(options["make"])
    try:
        server = make(options["args"], model=model, host=host, port=int(port))
    except ConfigError as exc:
        raise ConfigError(f"on the machine {host}: {exc}") from None
    beside = _Beside(server, model, Relay(host, token=options["token"]), port=int(port))
    answering = Answering(beside)
    channel.ready(
        {
            "address": f"http://{join_address(host, int(port))}",
            "relay": beside.relay.address,
            "software": dict(server.software),
        }
    )
    try:
        while beside.is_well:
            if (request := channel.receive(timeout_s=WATCH_EVERY_S)) is not None:
                answering.answer(request)
        sys.stderr.write("the server has ended\n")
    finally:
        beside.close()


class ServerHost(Service, Protocol):
    """Contract of the process beside a server."""

    def start(self) -> Answer[int]:
        """Start the server, whose output goes where this process's output goes. Returns its process id."""

    def sees(self, files: list[list[str]]) -> Answer[list[bool]]:
        """Whether this machine has each of the files, which are told by their `identity`."""

    def forget(self) -> Answer[None]:
        """Free the weights that the machine has received."""

    def checkpoint(self, files: dict[str, str | None], version: int) -> Answer[str]:
        """A directory of links to files that this machine sees, or has received (those without a path)."""


class _Beside(ServerHost):
    """The process beside the server."""

    def __init__(self, server: LocalServer, model: Path, relay: Relay, *, port: int) -> None:
        self.relay = relay
        self._server = server
        self._model = model
        self._port = KeptPort(port)
        self._process: ServerProcess | None = None
        self._links = tempfile.TemporaryDirectory(prefix="areal-sdk-weights-")

    @property
    def is_well(self) -> bool:
        return self._process is None or self._process.is_running

    def close(self) -> None:
        if self._process is not None:
            asyncio.run(self._process.stop(grace_s=STOP_S))
        self._port.close()
        self.relay.close()
        self._links.cleanup()

    def start(self) -> int:
        software = ", ".join(f"{name} {version}" for name, version in self._server.software.items())
        sys.stderr.write(f"starting the server ({software})\n")
        log = Path("/proc/self/fd/1")
        self._process = start_process(self._server.command, port=self._port.number, log_path=log)
        return self._process.pid

    def sees(self, files: list[list[str]]) -> list[bool]:
        return [identity(Path(there[0])) == there for there in files]

    def forget(self) -> None:
        self.relay.forget()

    def checkpoint(self, files: dict[str, str | None], version: int) -> str:
        links = {name: path or self.relay.path_of(name) for name, path in files.items()}
        links.setdefault("config.json", str(self._model / "config.json"))
        return str(link_checkpoint(Path(self._links.name) / f"{version % 2}", links))


def link_checkpoint(directory: Path, links: Mapping[str, str]) -> Path:
    """Make `directory` a directory of these links, by name. Links that it had before are removed."""
    directory.mkdir(exist_ok=True)
    for former in directory.iterdir():
        if former.name not in links:
            former.unlink()
    for name, target in links.items():
        temporary = directory / f".{name}"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        os.replace(temporary, directory / name)
    return directory


def identity(path: Path) -> list[str]:
    """The identity of a file, to tell it from one with the same path on another machine: path, size, time of writing.
    Empty if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return []
    return [str(path), str(found.st_size), str(found.st_mtime_ns)]
