"""CPU time of processes of this machine: where a run's seconds go."""

import os
from pathlib import Path


def cpu_seconds(pid: int) -> float | None:
    """User and system time that process `pid` has used; None once it is gone.

    >>> cpu_seconds(os.getpid()) > 0.0
    True
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()  # the name before it may hold spaces
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
