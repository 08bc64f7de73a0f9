"""Machines of a network that exists on this computer only: namespaces on a bridge.

    main   machine-1   machine-2 ...     a network namespace each, with its own address, /dev/shm and no way out
      |        |           |
    ==+========+===========+====         the bridge, in a namespace of its own

A link that is down drops everything without a word, as a pulled cable does.
"""

import itertools
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

SHARED_MEMORY = Path("/dev/shm")
GONE_WITHIN_S = 20.0
_counter = itertools.count(1)


class Machine:
    """A network namespace with one link.

    Its processes see the files of this computer, as on a shared disk, but not its /dev/shm and its `own` directories.
    """

    def __init__(self, network: str, switch: str, number: int, own: Sequence[Path]) -> None:
        self.name = f"{network}-{number}"
        self.address = f"10.77.0.{number}"
        self._own = {path: path / self.name for path in (SHARED_MEMORY, *own)}
        for directory in self._own.values():
            directory.mkdir()
        self._switch = switch
        self._started: list[subprocess.Popen[str]] = []
        self._port = f"port{number}"
        self.was_cut = False
        """Whether the machine was cut off, until its owner says otherwise: what ran on it may have
        been given up."""
        _ip("netns", "add", self.name)
        inside = ("-n", self.name)
        _ip(*inside, "link", "set", "lo", "up")
        pair = ("type", "veth", "peer", "name", "eth0", "netns", self.name)
        _ip("-n", switch, "link", "add", self._port, *pair)
        _ip("-n", switch, "link", "set", self._port, "master", "bridge", "up")
        _ip(*inside, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _ip(*inside, "link", "set", "eth0", "up")

    def start(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        stdout: int | IO[Any] | None = None,
    ) -> "subprocess.Popen[str]":
        """Start `command` on this machine; its errors go where its output goes."""
        mounts = [
            shlex.join(["mount", "--bind", str(own), str(path)]) for path, own in self._own.items()
        ]
        script = " && ".join([*mounts, f"exec {shlex.join(command)}"])
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.name, "unshare", "--mount", "sh", "-c", script],
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    def cut(self) -> None:
        """Take the link down."""
        self.was_cut = True
        _ip("-n", self._switch, "link", "set", self._port, "down")

    def heal(self) -> None:
        _ip("-n", self._switch, "link", "set", self._port, "up")

    def forget(self, other: "Machine") -> None:
        """Drop what this machine would send to `other`; other links stay."""
        _ip("-n", self.name, "route", "add", "blackhole", f"{other.address}/32")

    def remember(self, other: "Machine") -> None:
        _ip("-n", self.name, "route", "del", "blackhole", f"{other.address}/32")

    def pids(self) -> list[int]:
        """Every process in the namespace: all were started by this test, or by what it started."""
        done = subprocess.run(["ip", "netns", "pids", self.name], capture_output=True, text=True)
        return [int(pid) for pid in done.stdout.split()]

    def stop(self) -> None:
        """Kill every process of this machine. Returns when none is left."""
        deadline = time.monotonic() + GONE_WITHIN_S
        while pids := self.pids():
            for pid in pids:
                if not _is_zombie(pid):
                    os.kill(pid, signal.SIGKILL)
            if all(map(_is_zombie, pids)):
                return
            assert time.monotonic() < deadline, f"{self.name}: {pids} did not die"
            time.sleep(0.05)

    def remove(self) -> None:
        self.stop()
        for process in self._started:
            process.wait(GONE_WITHIN_S)
            if process.stdout is not None:
                process.stdout.close()
        _ip("netns", "del", self.name)
        for directory in self._own.values():
            shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def machines(count: int, *, own: Sequence[Path] = ()) -> Iterator[list[Machine]]:
    """`count` machines that reach one another; each has `own` directories of its own.

    At the end their processes are killed, and they are removed.
    """
    network = f"areal{os.getpid()}x{next(_counter)}"
    switch = f"{network}-bridge"
    made: list[Machine] = []
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for number in range(1, count + 1):
            made.append(Machine(network, switch, number, own))
        yield made
    finally:
        for machine in made:
            machine.remove()
        for name in _namespaces(network):  # with what was made halfway
            _ip("netns", "del", name)


def why_not() -> str:
    """The reason why this computer cannot make machines; empty if it can."""
    try:
        with machines(2) as (one, other):
            probe = one.start("true")
            if probe.wait(10):
                return "a namespace cannot have a /dev/shm of its own: it takes root"
            del other
    except FileNotFoundError:
        return "network namespaces take `ip` (iproute2) and `unshare`"
    except subprocess.CalledProcessError as exc:
        return f"network namespaces take root: {exc.stderr.strip()}"
    return ""


def _namespaces(network: str) -> Sequence[str]:
    directory = Path("/run/netns")
    return [path.name for path in directory.glob(f"{network}-*")] if directory.is_dir() else []


def _is_zombie(pid: int) -> bool:
    try:
        return (
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
            == "Z"
        )
    except OSError:
        return True


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
