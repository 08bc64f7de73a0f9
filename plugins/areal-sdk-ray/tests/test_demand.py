"""Room in a cluster: what fits, and what is said to be missing."""

from areal_sdk_ray.demand import Demand, NodeRoom, shortage

NODES = [NodeRoom("10.0.0.1", cpus=8, gpus=4), NodeRoom("10.0.0.2", cpus=8, gpus=0)]


def test_processes_that_fit_have_no_shortage() -> None:
    assert shortage([Demand(f"trainer-{n}", 1, 1) for n in range(4)], NODES) == ""


def test_a_process_that_no_node_can_hold_is_named() -> None:
    said = shortage([Demand("server-0", 1, 8)], NODES)
    assert said == "server-0 needs 8 GPUs on one node, the largest has 4"


def test_the_number_of_processes_that_fit_is_said_with_the_nodes() -> None:
    said = shortage([Demand(f"trainer-{n}", 1, 1) for n in range(5)], NODES)
    assert said.startswith(
        "5 processes need 5 GPUs and 5 CPUs (1 GPU and 1 CPU each), and only 4 of them fit"
    )
    assert said.endswith("10.0.0.1 has 4 GPUs and 8 CPUs, 10.0.0.2 has 0 GPUs and 8 CPUs")


def test_a_cluster_without_nodes_has_no_room() -> None:
    assert shortage([Demand("engine", 1, 0)], []) == "the cluster has no node"
