"""The launcher contract: a launcher places the processes of a run on machines.

A launcher starts the program `areal_sdk.join` for each `ProcessSpec`, by whatever means (ssh, a scheduler, a
container), and takes the processes in by a `Listener`. `spawn` does both on this machine. All names that a launcher
needs are here, so that a package with one imports nothing inside areal-sdk.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from areal_sdk.process import (
    Channel,
    ChannelClosedError,
    Child,
    ChildExit,
    ProcessSpec,
    Request,
    Reservation,
    gpus_of,
    spawn,
)
from areal_sdk.process.environments import (
    begin_environment,
    make_environment,
    pip_install,
    run_words,
)
from areal_sdk.process.network.handshake import TOKEN_VARIABLE, split_address
from areal_sdk.process.network.listen import KeptPort, Listener, Starter
from areal_sdk.process.services import Answer, Answering, Client, Service
from areal_sdk.process.spec import SHARE_VARIABLE
from areal_sdk.telemetry.live.waits import waiting

if TYPE_CHECKING:
    from areal_sdk.config import ClusterSection

__all__ = [
    "JOIN",
    "SHARE_VARIABLE",
    "START_TIMEOUT_S",
    "TOKEN_VARIABLE",
    "Answer",
    "Answering",
    "Channel",
    "ChannelClosedError",
    "Child",
    "ChildExit",
    "Client",
    "FindsRoom",
    "KeptPort",
    "Launcher",
    "LauncherSetup",
    "Listener",
    "OpenLauncher",
    "ProcessSpec",
    "Request",
    "Reservation",
    "Service",
    "Starter",
    "begin_environment",
    "first_exit",
    "gpus_of",
    "make_environment",
    "pip_install",
    "rank_environment",
    "run_words",
    "spawn",
    "split_address",
    "waiting",
]

START_TIMEOUT_S = 600.0
"""Seconds for a process to come up: it may have to load many gigabytes."""

JOIN = "areal_sdk.join"
"""The program that joins a run: `python -m areal_sdk.join HOST:PORT NAME`, with the listener's token in the
variable `TOKEN_VARIABLE`. It runs the entry of the spec that `Listener.accept` has under this name, and ends with
the process that started it."""


class Launcher(Protocol):
    """Places the processes of a run, somewhere."""

    @property
    def host(self) -> str:
        """The address of this machine for the processes that were placed."""
        ...

    async def launch(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        """Start all of `specs` as ranks 0, 1, ... of one job, or none of them.

        Each entry finds `rank_environment` and `spec.environment()` in its environment. Returns, in the order of
        `specs`, when every entry has called `ready`.
        """

    async def aclose(self) -> None:
        """Release what the launcher itself holds. Children belong to the caller of `launch`."""


@runtime_checkable
class FindsRoom(Protocol):
    """A launcher of machines that come and go."""

    async def has_room(self, specs: Sequence[ProcessSpec], *, timeout_s: float) -> bool:
        """Whether all of `specs` find room within `timeout_s`. None is started, and the room is given back."""
        ...

    async def shortage(self, specs: Sequence[ProcessSpec]) -> str:
        """The reason why the machines could never hold all of `specs` together, whoever uses them
        now; empty if they could."""
        ...


@dataclass(frozen=True, slots=True)
class LauncherSetup:
    """The facts of a run that its launcher is opened with. `areal_sdk.testing.launcher_setup` makes one."""

    cluster: "ClusterSection"
    """The settings of `[cluster]`: `address`, `listen_host`, `listen_port`, `placement_timeout_s`."""
    run: str
    """The name of the run: the cluster shows its processes under this name."""
    num_ranks: int
    """Trainer ranks that will be placed."""
    log_dir: Path
    """A directory of the run directory, for the output of each process."""
    say: Callable[[str], None]
    """Shows a line to the user."""
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Variables of processes on this machine, by name: the GPUs that are planned for them."""


OpenLauncher = Callable[..., Awaitable[Launcher]]
"""`await open(setup, **options)`."""


def rank_environment(
    rank: int,
    world_size: int,
    *,
    master: str,
    port: int,
    local_rank: int | None = None,
    local_world_size: int | None = None,
) -> dict[str, str]:
    """The variables that torch.distributed reads, with the names that torchrun sets.

    `master` and `port` are the address of rank 0. On one machine the local rank is the rank.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank if local_rank is None else local_rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(world_size if local_world_size is None else local_world_size),
        "MASTER_ADDR": master,
        "MASTER_PORT": str(port),
    }


async def first_exit(children: Sequence[Child]) -> Child:
    """Wait until one of `children` ends, however that happens, and return it.

    Ranks that go on without it would wait in a collective: close them.
    """
    await asyncio.wait([child.exited for child in children], return_when=asyncio.FIRST_COMPLETED)
    return next(child for child in children if child.exited.done())
