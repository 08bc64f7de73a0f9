"""A Ray cluster whose nodes are machines of `tests.netns.network`, and runs on it."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.loop.runs import training
from tests.netns.network import Machine, machines

RAY = str(Path(sys.executable).with_name("ray"))
PORT = 6379
UP_WITHIN_S = 300.0


@dataclass(slots=True)
class Cluster:
    """The main machine has the head of Ray and no room; the others have room for one process each."""

    main: Machine
    others: list[Machine]
    directory: Path
    """Directory for what the nodes of Ray print."""
    _nodes: "dict[str, subprocess.Popen[str]]" = field(default_factory=dict)
    """`ray start` of each machine, by the machine's name."""

    @property
    def sockets(self) -> Path:
        return self.directory / "ray"

    @property
    def address(self) -> str:
        return f"{self.main.address}:{PORT}"

    def start_node(self, machine: Machine) -> None:
        where = ["--address", self.address, "--num-cpus", "1"]
        if machine is self.main:
            where = ["--head", "--port", str(PORT), "--num-cpus", "0"]
            where += ["--temp-dir", str(self.sockets), "--include-dashboard", "false"]
        where += ["--node-ip-address", machine.address, "--object-store-memory", str(100 * 2**20)]
        with (self.directory / f"{machine.name}.txt").open("a") as output:
            self._nodes[machine.name] = machine.start(
                *(RAY, "start", "--block", "--disable-usage-stats", *where),
                env={"RAY_worker_niceness": "0"},
                stdout=output,
            )

    def mend(self) -> None:
        """Bring links back, and start the nodes of machines that were cut off anew: Ray gives those up."""
        cut = [machine for machine in self.others if machine.was_cut]
        for machine in cut:
            machine.stop()
            machine.heal()
        self.wait_for(1 + len(self.others) - len(cut))
        for machine in cut:
            machine.was_cut = False
            self.start_node(machine)
        self.wait_for(1 + len(self.others))

    def wait_for_head(self) -> None:
        """Wait until something listens where the head will."""
        check = (
            f"import socket; socket.create_connection(({self.main.address!r}, {PORT}), timeout=1)"
        )
        deadline = time.monotonic() + UP_WITHIN_S
        while self.main.start(sys.executable, "-c", check, stdout=subprocess.DEVNULL).wait():
            assert time.monotonic() < deadline, f"no head within {UP_WITHIN_S:g} s"
            time.sleep(0.2)

    def wait_for(self, count: int) -> None:
        """Wait until `count` nodes are up. A node that did not start is started again.

        Ray gives a raylet 30 s to start, which is little on a busy machine.
        """
        deadline = time.monotonic() + UP_WITHIN_S
        while (up := self._num_up(count)) != count:
            assert time.monotonic() < deadline, f"{up} nodes after {UP_WITHIN_S:g} s, not {count}"
            for machine in (self.main, *self.others):
                if not machine.was_cut and self._nodes[machine.name].poll() is not None:
                    machine.stop()  # with what is left of the node
                    self.start_node(machine)

    def _num_up(self, count: int) -> int:
        """Nodes that are up, once they are `count` or after a while; -1 without a head."""
        check = (
            "import ray, time\n"
            f"ray.init(address={self.address!r}, logging_level='ERROR', log_to_driver=False)\n"
            "deadline = time.monotonic() + 15\n"
            "while (up := sum(node['Alive'] for node in ray.nodes())) != "
            f"{count} and time.monotonic() < deadline:\n"
            "    time.sleep(0.2)\n"
            "print(up)"
        )
        asking = self.main.start(sys.executable, "-c", check, stdout=subprocess.PIPE)
        told, _ = asking.communicate(timeout=UP_WITHIN_S)
        return int(told.split()[-1]) if asking.returncode == 0 else -1

    def machine_of(self, process: str) -> Machine:
        """The machine where a process of a run is, by the name that it joined under."""
        found = [m for m in self.others if any(_joins(pid, f"{process}@") for pid in m.pids())]
        assert len(found) == 1, f"{process} is on {[machine.name for machine in found]}"
        return found[0]

    def start_training(
        self, directory: Path, *arguments: str, **settings: Any
    ) -> "subprocess.Popen[str]":
        """`areal-sdk train` on the main machine; its processes are placed on the others."""
        there = ("--launcher", "ray", "--set", f"cluster.address={self.address}")
        return self.start_command(*training(directory, *there, *arguments, **settings))

    def start_command(self, *arguments: str) -> "subprocess.Popen[str]":
        return self.main.start(
            *(sys.executable, "-m", "areal_sdk", *arguments),
            env={"OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
        )


def _joins(pid: int, name: str) -> bool:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
    except OSError:
        return False  # it ended meanwhile
    return "areal_sdk.join" in arguments and arguments[-2].startswith(name)


@contextmanager
def cluster(count: int, directory: Path) -> Iterator[Cluster]:
    """A cluster of the main machine and `count` others."""
    sockets = directory / "ray"
    sockets.mkdir(parents=True)
    with machines(1 + count, own=[sockets]) as (main, *others):
        made = Cluster(main, others, directory)
        made.start_node(main)
        made.wait_for_head()
        for machine in others:
            made.start_node(machine)
        made.wait_for(1 + count)
        yield made
