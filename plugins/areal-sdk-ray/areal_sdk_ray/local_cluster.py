"""A Ray cluster of several nodes on this machine, for tests and to try a run: real raylets, in a process of their own.

python -m areal_sdk_ray.local_cluster NODES CPUS HEAD_CPUS      # prints its address; ends when its input ends

Lines of its input change it: `add`, and `lose PID...`, which kills the first node after the head that has one of the raylets.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RayCluster:
    address: str
    _process: "subprocess.Popen[str]"

    def add_node(self) -> None:
        self._ask("add")

    def lose_node_of(self, name: str) -> None:
        """Kill a node, not the head, that has a process whose name begins with `name`."""
        pids = [pid for pid, words in commands() if any(w.startswith(name) for w in words)]
        self._ask(" ".join(["lose", *(str(raylet_of(pid)) for pid in pids)]))

    def _ask(self, line: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        while answer and not answer.startswith("done "):
            answer = self._process.stdout.readline()
        assert answer.strip() == f"done {line.split()[0]}", answer


@contextmanager
def ray_cluster(nodes: int, *, cpus: int, head_cpus: int | None = None) -> Iterator[str]:
    """The address of a cluster whose `nodes` have `cpus` processors each, the head among them."""
    with open_cluster(nodes, cpus=cpus, head_cpus=head_cpus) as cluster:
        yield cluster.address


@contextmanager
def open_cluster(
    nodes: int, *, cpus: int, head_cpus: int | None = None, env: Mapping[str, str] | None = None
) -> Iterator[RayCluster]:
    """A cluster whose `nodes` have `cpus` processors each, the head among them; `env` is for all that it starts."""
    numbers = (nodes, cpus, cpus if head_cpus is None else head_cpus)
    command = [sys.executable, "-m", "areal_sdk_ray.local_cluster", *map(str, numbers)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "RAY_worker_niceness": "0",
            **(env or {}),
        },  # the default, 15, starves on a busy machine
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = ""
        while not line.startswith("address "):
            line = process.stdout.readline()
            assert line, "the cluster did not start"
        yield RayCluster(line.split()[1], process)
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def commands() -> Iterator[tuple[int, list[str]]]:
    """The processes of this machine and the words of their command lines."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue  # it ended meanwhile
            yield int(entry.name), words


def raylet_of(pid: int) -> int:
    """The raylet above a process; 0 if there is none."""
    while pid > 1:
        if Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip() == "raylet":
            return pid
        pid = parent_of(pid)
    return 0


def raylets_of(address: str) -> list[int]:
    """The raylets of the cluster at `address`, in the order of their start."""
    return sorted(
        pid
        for pid, words in commands()
        if words[0].endswith("/raylet") and f"--gcs-address={address}" in words
    )


def lose_node(raylet: int) -> None:
    """Kill the raylet of a node and all that runs there, at once."""
    lost, found = [raylet], [raylet]
    while found:
        found = [pid for pid, _ in commands() if pid not in lost and parent_of(pid) in lost]
        lost += found
    for pid in lost:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def parent_of(pid: int) -> int:
    """0 where the process has ended."""
    try:
        return int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
        )
    except OSError:
        return 0


def main(nodes: int, cpus: int, head_cpus: int) -> None:
    from ray.cluster_utils import Cluster

    options = {"num_cpus": cpus, "object_store_memory": 100 * 2**20}
    head = {**options, "num_cpus": head_cpus, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    for _ in range(nodes - 1):
        cluster.add_node(**options)
    _tell(f"address {cluster.address}")
    for line in sys.stdin:
        what, *pids = line.split()
        if what == "add":
            cluster.add_node(**options)
        else:
            lost = next(n for n in cluster.worker_nodes if _pid_of(n) in map(int, pids))
            cluster.remove_node(lost, allow_graceful=False)
        _tell(f"done {what}")
    cluster.shutdown()


def _pid_of(node: object) -> int:
    (raylet,) = node.all_processes["raylet"]  # type: ignore[attr-defined]
    return int(raylet.process.pid)


def _tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
