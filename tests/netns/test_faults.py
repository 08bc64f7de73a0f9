"""Links that go down under a run, for a moment or for good: the run goes on, or says how to."""

import time
from pathlib import Path

import pytest

from tests.loop.runs import DEADLINE_S, finish, run_dir, wait_for_steps
from tests.netns.cluster import Cluster
from tests.netns.network import Machine, why_not
from tests.toolbox.run_records import check_books

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why := why_not()), reason=why or "can")]

SHORT_S = 3.0
"""Seconds after which a link comes back: a tenth of what a connection survives."""


def check_nothing_returns(machines: Cluster, machine: Machine, pids: list[int]) -> None:
    """The link of a machine that Ray has given up comes back: all of `pids` end.

    Ray gives a machine up about a minute after its link went down, and a quick run has ended before: a raylet whose
    link comes back earlier rightly goes on.
    """
    machines.wait_for(len(machines.others))  # the main machine, and all others but this one
    machine.heal()
    deadline = time.monotonic() + DEADLINE_S
    while left := set(machine.pids()) & set(pids):
        assert time.monotonic() < deadline, f"{left} of {machine.name} went on"
        time.sleep(0.2)


def train_and_cut(machines: Cluster, tmp_path: Path, part: str) -> str:
    """The output of a run that loses the machine of `part`: its books balance, its processes end."""
    process = machines.start_training(tmp_path, rollout__nodes=2, run__steps=20)
    wait_for_steps(process, tmp_path, 3)
    machine = machines.machine_of(part)
    pids = machine.pids()
    machine.cut()
    output = finish(process)
    check_books(tmp_path, trained=20 * 16)
    check_nothing_returns(machines, machine, pids)
    return output


def test_a_node_whose_link_comes_back_goes_on(machines: Cluster, tmp_path: Path) -> None:
    process = machines.start_training(tmp_path, rollout__nodes=2, run__steps=20)
    wait_for_steps(process, tmp_path, 3)
    machine = machines.machine_of("node-0")
    machine.cut()
    time.sleep(SHORT_S)
    machine.heal()
    output = finish(process)
    assert "another node takes its place" not in output
    check_books(tmp_path, trained=20 * 16)


def test_a_node_whose_link_is_gone_is_replaced_and_cannot_return(
    machines: Cluster, tmp_path: Path
) -> None:
    output = train_and_cut(machines, tmp_path, "node-0")
    assert "node-0.log: another node takes its place" in output


def test_an_engine_whose_link_is_gone_is_started_elsewhere_at_the_current_version(
    machines: Cluster, tmp_path: Path
) -> None:
    output = train_and_cut(machines, tmp_path, "engine")
    assert "warning: the engine (10.77.0." in output
    assert "starting it again" in output


def test_a_run_whose_rank_is_cut_off_ends_and_goes_on_with_what_is_left(
    machines: Cluster, tmp_path: Path
) -> None:
    settings = {"rollout__nodes": 2, "trainer__ranks": 2, "run__checkpoint_every": 2}
    process = machines.start_training(tmp_path, run__steps=60, **settings)
    wait_for_steps(process, tmp_path, 4)
    machine = machines.machine_of("trainer-1")
    machine.cut()
    output = finish(process, code=1)
    assert "go on with: areal-sdk train --resume" in output
    resumed = machines.start_command("train", "--resume", str(tmp_path / "run"), "--steps", "8")
    assert "resumed after step" in finish(resumed)
    assert max(row["step"] for row in run_dir(tmp_path).read_metrics(kind="step")) >= 8
    books = run_dir(tmp_path).read_ledger()
    assert books is not None
    dropped = sum(books["dropped"].values())
    assert books["started"] == books["buffered"] + books["trained"] + dropped
