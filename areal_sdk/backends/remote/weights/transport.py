"""The transports of published weights to a server: files, shared memory, or a process group.

A transport is used in two phases. `prepare` runs while generation goes on and may be slow; `push`
runs while one server is paused and does nothing but move bytes into it.
"""

import asyncio
import itertools
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from areal_sdk.backends.remote.client import ServerFailedError
from areal_sdk.backends.remote.server_pool import Server
from areal_sdk.backends.remote.starting.placement import PlacedServer
from areal_sdk.backends.remote.starting.server_process import link_checkpoint
from areal_sdk.backends.remote.weights.delivery import deliver
from areal_sdk.backends.remote.weights.sender import SenderCalls, WeightGroup, WeightSender
from areal_sdk.errors import EngineError
from areal_sdk.process.network.listen import KeptPort
from areal_sdk.types import WeightUpdate

_LEAVE_TIMEOUT_S = 5.0
"""Seconds for the sender to leave a group whose server is gone. A failure does not matter, because the group is never
used again."""

Half = Coroutine[Any, Any, object]


class Transport(ABC):
    """Moves the prepared version into one server at a time; servers fail independently."""

    @abstractmethod
    async def prepare(self, update: WeightUpdate, servers: Sequence[Server]) -> None:
        """Do everything that can be done before a server is paused."""

    @abstractmethod
    async def push(self, server: Server, *, label: str, flush: bool) -> None:
        """Load the prepared version into a server; on an error it may be half loaded."""

    async def forget(self, server: Server) -> None:  # noqa: B027 - most have nothing to forget
        """Drop everything that was shared with a server that is gone or was restarted."""

    async def aclose(self) -> None:  # noqa: B027 - most own nothing
        """Release what the transport owns."""


class DiskTransport(Transport):
    """Servers read the safetensors themselves. A placed server gets the files that its machine does not see."""

    def __init__(self, model: Path) -> None:
        self._model = model
        self._links = tempfile.TemporaryDirectory(prefix="areal-sdk-weights-")
        self._directory: Path | None = None
        self._elsewhere: Mapping[PlacedServer, str | EngineError] = {}

    async def prepare(self, update: WeightUpdate, servers: Sequence[Server]) -> None:
        assert update.path is not None
        self._directory = self._as_checkpoint(Path(update.path), update.version)
        placed = [m.process for m in servers if isinstance(m.process, PlacedServer)]
        self._elsewhere = await deliver(update, placed)

    async def push(self, server: Server, *, label: str, flush: bool) -> None:
        assert self._directory is not None, "prepare comes first"
        directory: str | EngineError = str(self._directory)
        if isinstance(server.process, PlacedServer):
            directory = self._elsewhere[server.process]
        if isinstance(directory, EngineError):
            raise directory
        await server.client.update_from_disk(directory, label=label, flush=flush)

    async def aclose(self) -> None:
        self._links.cleanup()

    def _as_checkpoint(self, path: Path, version: int) -> Path:
        """A directory for `path`, since servers load directories. For a single file it is a directory of links."""
        if not path.exists():
            raise EngineError(f"the weights of version {version} are not there any more: {path}")
        path = path.absolute()
        if path.is_dir():
            return path
        links = {"model.safetensors": str(path), "config.json": str(self._model / "config.json")}
        return link_checkpoint(Path(self._links.name) / f"{version % 2}", links)


class TensorTransport(Transport):
    """Flat buckets in shared memory, opened by servers on this host."""

    def __init__(self, sender: WeightSender) -> None:
        self._sender = sender
        self._handles: dict[Server, list[list[str]]] = {}
        """One handle per rank for each bucket. A handle is good for one opening."""

    async def prepare(self, update: WeightUpdate, servers: Sequence[Server]) -> None:
        await self._sender.open(update)
        buckets = await self._sender.fill()
        for server in servers:
            assert server.info is not None
            self._handles[server] = [
                await self._sender.call(SenderCalls.handles, index, server.info.num_ranks)
                for index in range(len(buckets))
            ]

    async def push(self, server: Server, *, label: str, flush: bool) -> None:
        handles = self._handles.pop(server)
        await server.client.begin_update()
        for bucket in handles:
            is_last = bucket is handles[-1]
            await server.client.update_from_tensor(
                bucket, label=label if is_last else None, flush=flush and is_last
            )
        await server.client.end_update()

    async def forget(self, server: Server) -> None:
        self._handles.pop(server, None)


class DistributedTransport(Transport):
    """A process group of the sender and one server's ranks: gloo on CPU, nccl on CUDA.

    One group a server, so that a server which refuses or dies takes only its own group down.
    """

    def __init__(
        self, sender: WeightSender, *, host: str = "127.0.0.1", backend: str = "gloo"
    ) -> None:
        self._sender = sender
        self._host = host
        self._backend = backend
        self._groups: dict[Server, tuple[int, str]] = {}
        """The sender's generation and the group of each server: a group ends with its sender."""
        self._sequence = itertools.count()
        self._run = os.urandom(3).hex()

    async def prepare(self, update: WeightUpdate, servers: Sequence[Server]) -> None:
        await self._sender.open(update)
        await self._sender.fill()
        joins = await asyncio.gather(
            *(self._join(m) for m in servers if self._group_of(m) is None), return_exceptions=True
        )
        for error in joins:
            if isinstance(error, BaseException) and not isinstance(error, EngineError):
                raise error

    async def push(self, server: Server, *, label: str, flush: bool) -> None:
        group = self._group_of(server)
        if group is None:
            raise ServerFailedError(f"{server.address} has no weight group with the trainer's side")
        buckets = await self._sender.fill()
        await server.client.begin_update()
        for index, parameters in enumerate(buckets):
            is_last = index == len(buckets) - 1
            await both(
                server.client.update_from_group(
                    parameters,
                    group=group,
                    label=label if is_last else None,
                    flush=flush and is_last,
                ),
                self._sender.call(SenderCalls.send, group, index),
            )
        await server.client.end_update()

    async def forget(self, server: Server) -> None:
        """Leave the group on the sender's side. A server that still waits in it sees it broken."""
        group = self._group_of(server)
        self._groups.pop(server, None)
        if group is not None:
            with suppress(EngineError):
                await self._sender.call(SenderCalls.leave, group, timeout_s=_LEAVE_TIMEOUT_S)

    async def _join(self, server: Server) -> None:
        assert server.info is not None
        group = f"areal-{self._run}-{next(self._sequence)}"
        size = server.info.num_ranks + 1
        timeout_s = server.client.deadlines.control_s
        with KeptPort() as kept:
            port = kept.number
            await both(
                server.client.join_group(
                    host=self._host, port=port, world_size=size, group=group, backend=self._backend
                ),
                self._sender.call(
                    SenderCalls.join,
                    WeightGroup(group, self._host, port, size, self._backend, timeout_s),
                ),
            )
        self._groups[server] = (self._sender.generation, group)

    def _group_of(self, server: Server) -> str | None:
        generation, group = self._groups.get(server, (0, None))
        return group if generation == self._sender.generation else None


async def both(theirs: Half, ours: Half) -> None:
    """Run the two halves of a collective. If one half fails, nobody waits for the other half. The sender's half runs in a
    thread and ends by the group's own timeout."""
    try:
        async with asyncio.TaskGroup() as halves:
            halves.create_task(theirs)
            halves.create_task(ours)
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
