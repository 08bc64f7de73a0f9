"""The same run on one machine and on the nodes of a Ray cluster."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.launch.cluster import ray_cluster
from tests.loop.runs import finish, run_dir, start_training
from tests.loop.test_resume import curve


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Nodes with one processor each: the engine, two ranks and two rollout nodes need one each."""
    with ray_cluster(5, cpus=1) as address:
        yield address


def test_losses_on_five_nodes_are_those_of_one_machine_bit_for_bit(
    address: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"run__deterministic": True, "trainer__ranks": 2, "run__steps": 3}
    finish(start_training(tmp_path / "here", **settings))
    there = ("--launcher", "ray", "--set", f"cluster.address={address}")
    output = finish(start_training(tmp_path / "there", *there, rollout__nodes=2, **settings))
    assert curve(tmp_path / "there") == curve(tmp_path / "here")
    assert len(curve(tmp_path / "here")) == 3
    logs = {path.stem for path in run_dir(tmp_path / "there").logs.glob("*.log")}
    assert logs == {"engine", "node-0", "node-1", "placer", "trainer-0", "trainer-1"}, output


def test_what_the_cluster_cannot_hold_ends_the_run_at_once(address: str, tmp_path: Path) -> None:
    there = ("--launcher", "ray", "--set", f"cluster.address={address}")
    output = finish(start_training(tmp_path, *there, trainer__ranks=6), code=1)
    assert re.search(r"6 processes need 6 CPUs, and only 5 of them fit on the 5 nodes", output)
