"""Facts about processes, from `/proc`."""

import signal
from contextlib import suppress
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether the process still runs. A process that ended and that nobody has reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def children_of_this_process() -> set[str]:
    found: set[str] = set()
    for path in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # a thread that ended meanwhile
            found.update(path.read_text().split())
    return found


def deaf_to_ctrl_c() -> None:
    """Ignore Ctrl-C, as the background jobs of a shell's script do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
