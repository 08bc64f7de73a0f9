"""A server under measurement: a process of its own, what it costs, where it is reached."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Seat:
    """The address that the client of one session calls, and its key."""

    url: str
    key: str = ""


class Server:
    """A program that prints its seats as a line of JSON, and ends when its input does.

    What it writes to stderr is kept, for the error that says why it did not start.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: dict[str, str] | None = None,
        ready_s: float = 120.0,
    ) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})},
        )
        try:
            self.seats = self._read_seats(ready_s)
        except BaseException:
            self.close()
            raise
        self._next = 0

    def _read_seats(self, ready_s: float) -> list[Seat]:
        out = self._process.stdout
        assert out is not None
        if not select.select([out], [], [], ready_s)[0]:
            raise ServerError(f"it was not ready after {ready_s:.0f} s{self._last_words()}")
        line = out.readline()
        if not line:
            raise ServerError(f"it ended before it was ready{self._last_words()}")
        return [Seat(*seat) for seat in json.loads(line)]

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End it; the programs end their own children when their input ends."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            for pid in list(_tree(self._process.pid)):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def new_seat(self) -> Seat:
        """The seat of a session that nobody has played yet."""
        self._next += 1
        return self.seats[self._next - 1]

    def cpu_s(self) -> float:
        """CPU time used so far by the process and its children, all of their threads."""
        return cpu_seconds_of(self._process.pid)

    def resident_bytes(self) -> int:
        """Resident bytes of the process and its children; pages that they share count for each."""
        pages = sum(
            int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            for pid in _tree(self._process.pid)
        )
        return pages * os.sysconf("SC_PAGE_SIZE")


def own_server(
    role: str,
    model_dir: Path,
    num_sessions: int,
    *,
    upstream: str = "",
    checkout: Path | None = None,
) -> Server:
    """One of `servers.py`, of this checkout or of another one."""
    root = (checkout or Path(__file__).parents[2]).resolve()
    command = [sys.executable, str(root / "benchmarks" / "gateways" / "servers.py"), role]
    command += ["--model", str(model_dir), "--sessions", str(num_sessions)]
    return Server([*command, "--upstream", upstream], environment={"PYTHONPATH": str(root)})


class ServerError(Exception):
    """The server did not come up, or does not answer."""


def cpu_seconds_of(pid: int) -> float:
    """CPU time used so far by a process and its children, all of their threads."""
    threads = (task for member in _tree(pid) for task in _tasks(member))
    return sum(int((task / "schedstat").read_text().split()[0]) for task in threads) / 1e9


def _tree(pid: int) -> Iterator[int]:
    for task in _tasks(pid):
        for child in (task / "children").read_text().split():
            yield from _tree(int(child))
    yield pid


def _tasks(pid: int) -> list[Path]:
    return list(Path(f"/proc/{pid}/task").iterdir())
