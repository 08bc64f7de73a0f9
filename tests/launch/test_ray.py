"""Whole runs on the nodes of a real Ray cluster. The launcher itself is tested in plugins/areal-sdk-ray."""

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from areal_sdk_ray.local_cluster import commands, ray_cluster
from tests.loop.runs import finish, resume_training, run_dir, start_training, wait_for_steps
from tests.toolbox.processes import is_alive
from tests.toolbox.run_records import curve

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Five nodes with one processor each: an engine, two ranks and two rollout nodes need one each."""
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
    assert logs == {"engine", "node-0", "node-1", "driver", "trainer-0", "trainer-1"}, output


def test_what_the_cluster_cannot_hold_ends_the_run_at_once(address: str, tmp_path: Path) -> None:
    there = ("--launcher", "ray", "--set", f"cluster.address={address}")
    output = finish(start_training(tmp_path, *there, trainer__ranks=6), code=1)
    assert "6 processes need 6 CPUs (1 CPU each), and only 5 of them fit on the 5 nodes" in output


@pytest.mark.slow
def test_a_rank_that_is_killed_costs_a_restart_and_without_one_left_ends_the_run_by_name(
    address: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {
        "run__deterministic": True,
        "run__checkpoint_every": 2,
        "trainer__ranks": 2,
    }
    there = ("--launcher", "ray", "--set", f"cluster.address={address}")
    lost, whole = tmp_path / "lost", tmp_path / "whole"
    process = start_training(lost, *there, **settings, run__steps=10_000, run__restarts=1)
    wait_for_steps(process, lost, 3)
    first = kill_rank(1)
    wait_for_steps(process, lost, 7)
    kill_rank(0)
    output = finish(process, code=1)
    assert re.search(r"warning: trainer-1 .*log: \S+trainer-1\.log.*\(restart 1 of 1\)", output), (
        output
    )
    assert re.search(r"error: .*trainer-0 .*log: \S+trainer-0\.log", output), output
    assert f"areal-sdk train --resume {lost / 'run'}" in output
    assert not is_alive(first)
    steps = max(curve(lost)) + 2
    finish(resume_training(lost, "--steps", str(steps)))
    finish(start_training(whole, **settings, run__steps=steps))
    assert curve(lost) == curve(whole)
    books = run_dir(lost).read_ledger()
    assert books is not None
    assert books["trained"] == 16 * steps


def kill_rank(number: int) -> int:
    """The pid of a trainer rank of the only run, which is killed."""
    (pid,) = [
        pid for pid, words in commands() if any(w.startswith(f"trainer-{number}@") for w in words)
    ]
    os.kill(pid, signal.SIGKILL)
    return pid
