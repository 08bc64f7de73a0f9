"""Ranks that Ray places, and their ends."""

from pathlib import Path

from areal_sdk.config import ClusterSection
from areal_sdk.launcher import LauncherSetup
from areal_sdk.process import ProcessSpec
from areal_sdk.process.spec import Reservation
from tests.toolbox.processes import is_alive
from tests.toolbox.waiting import until

RANK = "tests.process.entries:rank"


def setup_of(address: str, log_dir: Path) -> LauncherSetup:
    cluster = ClusterSection(launcher="ray", address=address, placement_timeout_s=2)
    return LauncherSetup(cluster, "test", 2, log_dir, print)


def ranks(count: int, *, reserves: Reservation | None = None, **args: str) -> list[ProcessSpec]:
    return [
        ProcessSpec(f"trainer-{rank}", RANK, args, reserves=reserves or Reservation())
        for rank in range(count)
    ]


async def gone(pid: int) -> None:
    await until(lambda: not is_alive(pid))
