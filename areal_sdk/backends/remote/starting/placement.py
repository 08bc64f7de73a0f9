"""Servers on other machines: a launcher places a process of ours beside each, which starts the server there."""

import asyncio
import contextlib
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from areal_sdk.backends.remote.starting.processes import RunningServer, ServerStarter, tail
from areal_sdk.backends.remote.starting.server_process import ENTRY, ServerHost, identity
from areal_sdk.errors import EngineError, ProcessError, RemoteError
from areal_sdk.launcher import FindsRoom, Launcher
from areal_sdk.process import JSON, Child, ProcessSpec, Reservation
from areal_sdk.process.services import Client

CALL_TIMEOUT_S = 60.0
"""Seconds for an answer of the process beside a server; none of its answers waits for the server."""
LEAVE_S = 10.0
"""Seconds for the process beside a server to end. The server gets half of them to end by itself."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """The facts that another machine needs to start a server of an engine."""

    model: Path
    make: str
    """`package.module:function` or `file.py::function`, a `MakeServer` that is called on the machine."""
    args: Mapping[str, JSON]
    reserves: Reservation
    threads: int = 1
    no_room: str = ""
    """The cure to name when no machine has the resources."""
    too_many: str = ""
    """The cure to name when the machines have room for only some of the servers."""
    other_version: str = "install the same version on both"
    """The cure to name when two machines have different software."""


class PlacedServer(RunningServer):
    """A server on another machine. The process beside the server answers for it."""

    def __init__(self, child: Child, index: int, *, token: str) -> None:
        self.index = index
        self.token = token
        self._child = child
        self._host = Client[ServerHost](child)

    @property
    def address(self) -> str:
        return str(self._child.hello["address"])

    @property
    def relay(self) -> str:
        """The address `HOST:PORT` at which the machine receives weights."""
        return str(self._child.hello["relay"])

    @property
    def software(self) -> Mapping[str, str]:
        software: Mapping[str, str] = self._child.hello["software"]
        return software

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def log_path(self) -> Path:
        return self._child.log_path

    @property
    def is_running(self) -> bool:
        return not self._child.exited.done()

    def last_lines(self) -> str:
        return tail(self.log_path)

    def signal(self, number: int) -> None:
        self._child.signal(number)

    async def begin(self) -> None:
        """Start the server, which is ready some seconds later."""
        with _engine_errors():
            await self._host.call(ServerHost.start, timeout_s=CALL_TIMEOUT_S)

    async def stop(self, *, grace_s: float = 5.0) -> None:
        with _engine_errors():
            if grace_s:
                await self._child.aclose(grace_s=LEAVE_S)
            else:
                await self._child.kill()

    async def sees(self, files: Sequence[Path]) -> bool:
        """Whether the machine has these very files, at the same paths."""
        facts = [identity(path) for path in files]
        if not all(facts):
            raise EngineError(f"the weights are not there any more: {', '.join(map(str, files))}")
        with _engine_errors():
            seen = await self._host.call(ServerHost.sees, facts, timeout_s=CALL_TIMEOUT_S)
        return all(seen)

    async def forget_weights(self) -> None:
        """Free the weights that the server's machine has received."""
        with _engine_errors():
            await self._host.call(ServerHost.forget, timeout_s=CALL_TIMEOUT_S)

    async def checkpoint(self, files: Mapping[str, Path | None], *, version: int) -> str:
        """A directory on the server's machine with `files`, by name. The machine received the files without a path."""
        paths = {name: None if path is None else str(path) for name, path in files.items()}
        with _engine_errors():
            return await self._host.call(
                ServerHost.checkpoint, paths, version, timeout_s=CALL_TIMEOUT_S
            )


class _NoPlaceError(EngineError):
    """The launcher found no place for a server."""


class PlacedServers(ServerStarter):
    """The servers of an engine, placed where `launcher` finds room. A server that died may come back elsewhere."""

    def __init__(self, launcher: Launcher, recipe: Recipe, *, count: int) -> None:
        self.count = count
        self._launcher = launcher
        self._recipe = recipe
        self._token = secrets.token_urlsafe(24)
        self._software: Mapping[str, str] = {}
        """Versions of the software on the first server's machine."""

    async def start_all(self) -> Sequence[PlacedServer]:
        await self._check_room()
        placing = [asyncio.create_task(self._place(index)) for index in range(self.count)]
        try:
            servers = await self._all(placing)
            self._software = servers[0].software
            for server in servers:
                self._compare(server)
            await asyncio.gather(*(server.begin() for server in servers))
        except BaseException:
            for task in placing:
                task.cancel()
            placed = await asyncio.gather(*placing, return_exceptions=True)
            await asyncio.gather(*(s.stop() for s in placed if isinstance(s, PlacedServer)))
            raise
        return servers

    async def restart(self, server: RunningServer) -> PlacedServer:
        assert isinstance(server, PlacedServer)
        placed = await self._place(server.index)
        try:
            self._compare(placed)
            await placed.begin()
        except BaseException:
            await placed.stop(grace_s=0.0)
            raise
        return placed

    async def _check_room(self) -> None:
        """Raise EngineError if the machines could never hold all servers. Each server alone would not notice that the
        others need room too."""
        if not isinstance(self._launcher, FindsRoom):
            return
        specs, recipe = [self._spec(index) for index in range(self.count)], self._recipe
        with _engine_errors():
            if missing := await self._launcher.shortage(specs[:1]):
                raise EngineError(_with_cure(missing, recipe.no_room))
            if missing := await self._launcher.shortage(specs):
                told = f"there is no room for {self.count} servers: {missing}"
                raise EngineError(_with_cure(told, recipe.too_many))

    async def _all(self, placing: Sequence["asyncio.Task[PlacedServer]"]) -> list[PlacedServer]:
        """The placed servers. If there is no place for one, the error says how many are placed."""
        try:
            return await asyncio.gather(*placing)
        except _NoPlaceError as exc:
            if self.count == 1:
                raise
            num = sum(task.done() and task.exception() is None for task in placing)
            told = f"{num} of {self.count} servers are placed: {exc}"
            raise EngineError(_with_cure(told, self._recipe.too_many)) from exc

    async def _place(self, index: int) -> PlacedServer:
        """Place the process beside server `index`. The process is a job of its own, whose room becomes free when it
        ends."""
        try:
            (child,) = await self._launcher.launch([self._spec(index)])
        except RemoteError as exc:  # of the process itself
            raise EngineError(str(exc)) from exc
        except ProcessError as exc:
            raise _NoPlaceError(_with_cure(str(exc), self._recipe.no_room)) from exc
        return PlacedServer(child, index, token=self._token)

    def _spec(self, index: int) -> ProcessSpec:
        recipe = self._recipe
        return ProcessSpec(
            f"server-{index}",
            ENTRY,
            {
                "model": str(recipe.model.absolute()),
                "make": recipe.make,
                "args": recipe.args,
                "token": self._token,
            },
            threads=recipe.threads,
            reserves=recipe.reserves,
        )

    def _compare(self, server: PlacedServer) -> None:
        for name, version in self._software.items():
            if (theirs := server.software.get(name)) != version:
                raise EngineError(
                    f"the machine of server-{server.index} ({server.address}) has {name} {theirs}, that of "
                    f"server-0 {version}: {self._recipe.other_version}"
                )


def _with_cure(told: str, cure: str) -> str:
    return f"{told}; {cure}" if cure else told


@contextlib.contextmanager
def _engine_errors() -> Iterator[None]:
    try:
        yield
    except ProcessError as exc:
        raise EngineError(str(exc)) from exc
