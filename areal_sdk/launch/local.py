"""The default launcher: every process on this machine."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from areal_sdk.launcher import START_TIMEOUT_S, LauncherSetup, rank_environment
from areal_sdk.process import Child, ProcessSpec, spawn
from areal_sdk.process.child import kill_all
from areal_sdk.process.network.listen import KeptPort

HOST = "127.0.0.1"


async def open_local(setup: LauncherSetup) -> "LocalLauncher":
    return LocalLauncher(log_dir=setup.log_dir, environments=setup.environments)


class LocalLauncher:
    """Starts ranks as children of this process; they die with it."""

    def __init__(
        self,
        *,
        log_dir: Path,
        start_timeout_s: float = START_TIMEOUT_S,
        environments: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._environments = environments or {}
        self.log_dir = log_dir
        self.start_timeout_s = start_timeout_s
        self.host = HOST

    async def launch(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        world, planned = len(specs), self._environments
        with KeptPort() as kept:  # until rank 0 listens, seconds later
            placed = [
                replace(
                    spec,
                    env=_rank(rank, world, kept.number)
                    | {**planned.get(spec.name, {}), **spec.env},
                )
                for rank, spec in enumerate(specs)
            ]
            return await self._start_all(placed)

    async def aclose(self) -> None:
        """Do nothing: the launcher holds nothing."""

    async def _start_all(self, specs: Sequence[ProcessSpec]) -> list[Child]:
        """Start all ranks at once: they wait for each other before they are ready."""
        started: list[asyncio.Task[Child]] = []
        try:
            async with asyncio.TaskGroup() as group:
                for spec in specs:
                    starting = spawn(
                        spec, log_dir=self.log_dir, start_timeout_s=self.start_timeout_s
                    )
                    started.append(group.create_task(starting, name=f"start {spec.name}"))
        except BaseException as exc:
            up = [
                task.result() for task in started if not task.cancelled() and not task.exception()
            ]
            await kill_all(up)
            if isinstance(exc, ExceptionGroup):
                raise exc.exceptions[0] from exc
            raise
        return [task.result() for task in started]


def _rank(rank: int, world_size: int, port: int) -> dict[str, str]:
    return rank_environment(rank, world_size, master=HOST, port=port)
