"""Runs programs that nobody has read: without network, with limits, and with nothing left behind.

    sandbox = Sandbox(Limits(wall_s=5.0))
    end = await sandbox.run(["python3", "solution.py"], files={"solution.py": code})

`end` holds the result of the program, its errors included. A sandbox that cannot start raises
`SandboxError`, which is a fault of the machine: the episode is tried again, and never scored 0.0.
"""

from areal_sdk_sandbox.command import CommandSandbox, command_files
from areal_sdk_sandbox.forwarding import INNER_ADDRESS
from areal_sdk_sandbox.limits import LimitName, Limits
from areal_sdk_sandbox.run import (
    Isolation,
    Sandbox,
    SandboxEnd,
    SandboxError,
    why_not_isolated,
)

__all__ = [
    "CommandSandbox",
    "INNER_ADDRESS",
    "Isolation",
    "LimitName",
    "Limits",
    "Sandbox",
    "SandboxEnd",
    "SandboxError",
    "command_files",
    "why_not_isolated",
]
