"""The built-in launchers: `local` starts processes on this machine, `torchrun` takes in ranks that the user started.

They import nothing that they launch. The contract is `areal_sdk.launcher`.
"""

from areal_sdk.launch.local import LocalLauncher

__all__ = ["LocalLauncher"]
