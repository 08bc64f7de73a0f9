"""The launcher contract."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from areal_sdk.config import ClusterSection
from areal_sdk.process import Child, ProcessSpec

START_TIMEOUT_S = 600.0
"""A process may have to load many gigabytes before it is up."""


class Launcher(Protocol):
    """Places the processes of a run, somewhere."""

    @property
    def host(self) -> str:
        """The address of this machine for the processes that were placed."""
        ...

    async def launch(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        """Start all of `specs` as ranks 0, 1, ... of one job, or none of them.

        Each entry finds `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT` in its
        environment. Returns, in the order of `specs`, when every entry has called `ready`.
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
    """The facts of a run that its launcher is opened with."""

    cluster: ClusterSection
    run: str
    """The name of the run: the cluster shows its processes under this name."""
    num_ranks: int
    """Trainer ranks that will be placed."""
    log_dir: Path
    """A directory of the run directory, for the output of each process."""
    say: Callable[[str], None]
    """Shows a line to the user."""


OpenLauncher = Callable[..., Awaitable[Launcher]]
"""`await open(setup, **options)`."""


async def first_exit(children: Sequence[Child]) -> Child:
    """Wait until one of `children` ends, however that happens, and return it.

    Ranks that go on without it would wait in a collective: close them.
    """
    await asyncio.wait([child.exited for child in children], return_when=asyncio.FIRST_COMPLETED)
    return next(child for child in children if child.exited.done())
