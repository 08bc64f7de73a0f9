"""The limits of a program in a sandbox."""

from dataclasses import dataclass, fields
from typing import Literal

LimitName = Literal["wall", "cpu", "memory", "processes", "output"]


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one program, with everything that it starts.

    >>> Limits(wall_s=0)
    Traceback (most recent call last):
        ...
    ValueError: wall_s = 0: give a positive number
    """

    wall_s: float = 10.0
    cpu_s: float = 10.0
    """CPU time of all processes together. Of a process that ended and that nobody waits for, the last look counts (one
    every 50 ms or more); if it lived between two looks, only `wall_s` bounds it."""
    memory_mb: int = 512
    """Memory of all processes together, with what the kernel keeps for their files (1 KB each) and sockets (at most 416 KB
    each). The content of files in /tmp counts under `disk_mb`."""
    processes: int = 32
    """Processes and threads at one time."""
    output_kb: int = 1024
    """Maximum output of the program: stdout and stderr together."""
    disk_mb: int = 64
    """Maximum size of /tmp, and of each directory of `Sandbox(writable=...)`; a program can write to no others. A write
    past it fails, as on a full disk."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"{field.name} = {value!r}: give a positive number")

    def named(self, name: str) -> str:
        """The limit `name` with its value, for people.

        >>> Limits(memory_mb=64).named("memory")
        'memory limit of 64 MB'
        """
        amounts = {
            "wall": f"{self.wall_s:g} s of wall time",
            "cpu": f"{self.cpu_s:g} s of CPU time",
            "memory": f"{self.memory_mb} MB",
            "processes": f"{self.processes} at one time",
            "output": f"{self.output_kb} KB",
        }
        return f"{name} limit of {amounts[name]}"
