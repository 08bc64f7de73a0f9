"""A published version, brought to the machines of placed servers that do not see its files."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from areal_sdk.backends.remote.starting.placement import PlacedServer
from areal_sdk.backends.remote.weights.relay import send_file
from areal_sdk.errors import EngineError
from areal_sdk.process.threads import in_thread
from areal_sdk.types import WeightUpdate

logger = logging.getLogger(__name__)


async def deliver(
    update: WeightUpdate, servers: Sequence[PlacedServer]
) -> Mapping[PlacedServer, str | EngineError]:
    """The directory from which each server loads `update`, or the reason why it has none."""
    assert update.path is not None
    files = _files_of(Path(update.path))
    blind: list[PlacedServer] = []
    failed: dict[PlacedServer, EngineError] = {}

    async def ask(server: PlacedServer) -> None:
        try:
            if not await server.sees(list(files.values())):
                await server.forget_weights()
                blind.append(server)
        except EngineError as exc:
            failed[server] = exc

    await asyncio.gather(*(ask(server) for server in servers))
    for name, path in files.items():
        failed |= await _send(path, name, [server for server in blind if server not in failed])

    async def place(server: PlacedServer) -> str | EngineError:
        if server in failed:
            return failed[server]
        try:
            return await server.checkpoint(
                {name: None if server in blind else path for name, path in files.items()},
                version=update.version,
            )
        except EngineError as exc:
            return exc

    return dict(zip(servers, await asyncio.gather(*map(place, servers)), strict=True))


async def _send(
    path: Path, name: str, servers: Sequence[PlacedServer]
) -> dict[PlacedServer, EngineError]:
    """Send one file along a chain of `servers`. Returns those that did not get it.

    A receiver that breaks off cuts off the receivers behind it, which then get the file along a new chain.
    """
    failed: dict[PlacedServer, EngineError] = {}
    left = {server.relay: server for server in servers}
    while left:
        send = partial(send_file, path, name, list(left), token=servers[0].token)
        try:
            crc, arrivals = await in_thread(send, name="send weights")
        except OSError as exc:
            raise EngineError(
                f"the weights at {path} cannot be sent to the servers: {exc}"
            ) from exc
        for relay, why in arrivals.failed.items():
            failed[left.pop(relay)] = EngineError(f"no weights arrived at {relay}, which {why}")
        for relay, theirs in arrivals.crc32.items():
            server = left.pop(relay)
            if theirs != crc:
                failed[server] = EngineError(f"the weights that arrived at {relay} are damaged")
        if left:
            logger.warning("weights are sent again to %s", ", ".join(left))
    return failed


def _files_of(path: Path) -> dict[str, Path]:
    """The files of a published version, by the name under which a server loads each."""
    if not path.is_dir():
        return {"model.safetensors": path.absolute()}
    wanted = [file for kind in ("*.safetensors", "*.json") for file in path.glob(kind)]
    return {file.name: file.absolute() for file in sorted(wanted)}
