"""A Ray cluster of several nodes on this machine: real raylets, in a process of their own.

python -m tests.launch.cluster NODES CPUS      # prints its address; ends when its input ends
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ray_cluster(nodes: int, *, cpus: int) -> Iterator[str]:
    """The address of a cluster whose `nodes` have `cpus` processors each."""
    command = [sys.executable, "-m", "tests.launch.cluster", str(nodes), str(cpus)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "RAY_worker_niceness": "0",
        },  # the default, 15, starves on a busy machine
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        line = ""
        while not line.startswith("address "):
            line = process.stdout.readline()
            assert line, "the cluster did not start"
        yield line.split()[1]
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


def main(nodes: int, cpus: int) -> None:
    from ray.cluster_utils import Cluster

    options = {"num_cpus": cpus, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**options, "include_dashboard": False})
    for _ in range(nodes - 1):
        cluster.add_node(**options)
    sys.stdout.write(f"address {cluster.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
