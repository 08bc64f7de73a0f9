"""The launcher contract."""

import asyncio
from collections.abc import Sequence
from typing import Protocol

from areal_sdk.process import Child, ProcessSpec


class Launcher(Protocol):
    """Places the processes of one job, somewhere."""

    async def launch(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        """Start all of `specs` as ranks 0, 1, ... of one job, or none of them.

        Each entry finds `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR` and `MASTER_PORT` in its
        environment. Returns, in the order of `specs`, when every entry has called `ready`.
        """

    async def aclose(self) -> None:
        """Release what the launcher itself holds. Children belong to the caller of `launch`."""


async def first_exit(children: Sequence[Child]) -> Child:
    """Wait until one of `children` ends, however that happens, and return it.

    Ranks that go on without it would wait in a collective: close them.
    """
    await asyncio.wait([child.exited for child in children], return_when=asyncio.FIRST_COMPLETED)
    return next(child for child in children if child.exited.done())
