"""Launchers decide where processes run. A launcher places specs; it imports nothing that it
launches.

`local` starts them on this machine, `torchrun` takes in ranks that the user started, `ray` asks a Ray
cluster for room.
"""

from areal_sdk.launch.launcher import (
    FindsRoom,
    Launcher,
    LauncherSetup,
    OpenLauncher,
    first_exit,
)
from areal_sdk.launch.local import LocalLauncher

__all__ = [
    "FindsRoom",
    "Launcher",
    "LauncherSetup",
    "LocalLauncher",
    "OpenLauncher",
    "first_exit",
]
