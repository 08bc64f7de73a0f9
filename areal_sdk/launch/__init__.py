"""Where processes run. A launcher places specs; it imports nothing that it launches.

`local` starts them on this machine, `torchrun` takes in ranks that the user started. Placing them
on a cluster is one more class with the same method.
"""

from areal_sdk.launch.launcher import Launcher, first_exit
from areal_sdk.launch.local import LocalLauncher
from areal_sdk.launch.torchrun import TorchrunLauncher

__all__ = [
    "Launcher",
    "LocalLauncher",
    "TorchrunLauncher",
    "first_exit",
]
