"""Ranks that torchrun started on two machines, and a main process on a third."""

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.loop.runs import (
    DEADLINE_S,
    finish,
    start_training,
    told,
    training,
    wait_for_steps,
)
from tests.netns.network import Machine, machines, why_not
from tests.toolbox.processes import is_alive
from tests.toolbox.run_records import check_books, curve

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why := why_not()), reason=why or "can")]

PRINTED = r"trainer ranks with: (.*)$"
SETTINGS: dict[str, Any] = {"run__deterministic": True, "trainer__ranks": 2}


def start_run(
    here: Machine, directory: Path, **settings: Any
) -> tuple["subprocess.Popen[str]", str]:
    """A run on a machine, and the line that it prints for the machines of its ranks."""
    there = ("--launcher", "torchrun", "--set", f"cluster.listen_host={here.address}")
    command = training(directory, *there, **SETTINGS, **settings)
    process = start(here, *command)
    assert process.stdout is not None
    return process, told(process.stdout, PRINTED)


def start(machine: Machine, *arguments: str) -> "subprocess.Popen[str]":
    return machine.start(
        *(sys.executable, "-m", "areal_sdk", *arguments),
        env={"OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
    )


def start_ranks(line: str, ranks: list[Machine]) -> "list[subprocess.Popen[str]]":
    """Run the printed line on each machine as `examples/cluster/torchrun.sh` does."""
    several = f"--nproc-per-node 1 --nnodes {len(ranks)} --master-addr {ranks[0].address} --master-port 29500"
    variable, command = line.split(" ", 1)
    name, token = variable.split("=")
    command = command.replace("--nproc-per-node N", several)
    words = shlex.split(command)
    assert words.pop(0) == "torchrun"
    return [
        machine.start(
            *(sys.executable, "-m", "torch.distributed.run", "--node-rank", str(number), *words),
            env={name: token, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
        )
        for number, machine in enumerate(ranks)
    ]


def test_losses_of_ranks_on_two_machines_are_those_of_one_bit_for_bit(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    finish(start_training(here, **SETTINGS, run__steps=3))
    with machines(3) as (main, *ranks):
        process, line = start_run(main, there, run__steps=3)
        assert main.address in line
        started = start_ranks(line, ranks)
        finish(process)
        for rank in started:
            finish(rank)
    assert curve(there) == curve(here)
    assert len(curve(here)) == 3
    check_books(there, trained=3 * 16)


@pytest.mark.parametrize("loss", ["killed", "cut off"])
def test_a_run_that_loses_a_rank_names_it_and_goes_on_with_new_ones(
    loss: str, tmp_path: Path
) -> None:
    with machines(3) as (main, *ranks):
        process, line = start_run(main, tmp_path, run__steps=10_000, run__checkpoint_every=2)
        started = start_ranks(line, ranks)
        wait_for_steps(process, tmp_path, 3)
        lost = ranks[1]
        pids = [pid for pid in lost.pids() if "-u" in words_of(pid)]
        if loss == "cut off":
            lost.cut()
        else:
            os.kill(pids[0], signal.SIGKILL)
        output = finish(process, code=1)
        assert re.search(rf"error: .*trainer-1 .*{lost.address}", output), output
        assert f"areal-sdk train --resume {tmp_path / 'run'}" in output
        assert started[0].wait(DEADLINE_S) != 0
        check_ends(pids)  # a torchrun that is cut off waits for its peers for minutes
        lost.stop()
        lost.heal()
        last = max(curve(tmp_path)) + 2
        again = start(main, "train", "--resume", str(tmp_path / "run"), "--steps", str(last))
        assert again.stdout is not None
        started = start_ranks(told(again.stdout, PRINTED), ranks)
        finish(again)
        for rank in started:
            finish(rank)
    assert max(curve(tmp_path)) == last
    check_books(tmp_path, trained=16 * last)


def check_ends(pids: list[int]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def words_of(pid: int) -> list[str]:
    """The command line of a process; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8").split("\0")
    except OSError:
        return []
