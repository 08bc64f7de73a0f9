"""A run on a real Ray cluster whose machines leave and come back: it goes on with the ranks that there is room for."""

import re
import signal
import subprocess
import time
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.config import parse_config
from areal_sdk.errors import ConfigError
from areal_sdk.telemetry.metrics import read_metrics
from areal_sdk_ray.local_cluster import open_cluster
from tests.loop.runs import DEADLINE_S, finish, run_dir, start_training

SETTINGS: dict[str, Any] = {
    "run__deterministic": True,
    "run__checkpoint_every": 2,
    "trainer__ranks": 3,
}


def wait_for_ranks(process: "subprocess.Popen[str]", directory: Path, numbers: list[int]) -> None:
    """Return once the steps were taken by so many ranks, one number after the other, and three by the last."""
    deadline = time.monotonic() + 2 * DEADLINE_S
    while True:
        taken = [int(row["train/ranks"]) for row in steps_of(directory)]
        runs = [(number, len(list(group))) for number, group in groupby(taken)]
        if [number for number, _ in runs] == numbers and runs[-1][1] >= 3:
            return
        if process.poll() is not None:
            raise AssertionError(f"the run ended early:\n{process.communicate()[0]}")
        assert time.monotonic() < deadline, runs
        time.sleep(0.1)


def steps_of(directory: Path) -> list[dict[str, Any]]:
    return read_metrics(directory / "run" / "metrics.jsonl", kind="step")


def test_the_numbers_of_ranks_divide_what_they_must() -> None:
    def counts(**trainer: int) -> list[int]:
        return parse_config({"trainer": trainer}).trainer.rank_counts

    assert counts(ranks=4) == [4]
    assert counts(ranks=4, min_ranks=1) == [4, 3, 2, 1]
    assert counts(ranks=8, min_ranks=2, sequence_ranks=2) == [8, 6, 4, 2]
    assert counts(ranks=8, min_ranks=3, replicas=4) == [8, 4]
    with pytest.raises(ConfigError, match="min_ranks = 3 is more than ranks = 2"):
        counts(ranks=2, min_ranks=3)


def test_a_launcher_that_finds_no_room_is_refused(tmp_path: Path) -> None:
    said = finish(start_training(tmp_path, trainer__ranks=2, trainer__min_ranks=1), code=2)
    assert 'leave min_ranks out, or set cluster.launcher = "ray"' in said


@pytest.mark.slow
def test_a_run_that_loses_a_machine_goes_on_with_fewer_ranks_and_takes_more_when_one_comes(
    tmp_path: Path,
) -> None:
    """Two of three ranks have room, as the engine needs the third machine."""
    there = tmp_path / "there"
    with open_cluster(3, cpus=1) as cluster:
        process = start_training(
            there,
            *("--launcher", "ray", "--set", f"cluster.address={cluster.address}"),
            **SETTINGS,
            run__steps=10_000,
            run__restarts=3,
            trainer__min_ranks=1,
            cluster__placement_timeout_s=10,
        )
        try:
            wait_for_ranks(process, there, [2])
            cluster.lose_node_of("trainer-")
            wait_for_ranks(process, there, [2, 1])
            cluster.add_node()
            wait_for_ranks(process, there, [2, 1, 2])
            process.send_signal(signal.SIGINT)
            output = finish(process, code=1)
        finally:
            process.kill()
    assert "the cluster has room for 1 of 3 trainer ranks" in output
    assert "there is room for 2 of 3 trainer ranks now, 1 are in use" in output
    assert len(re.findall(r"\(restart \d of 3\)", output)) == 1
    run = run_dir(there)
    books = run.read_ledger()
    assert books is not None
    assert books["started"] == (
        books["running"] + books["buffered"] + books["trained"] + sum(books["dropped"].values())
    )
    steps = run.read_steps()
    assert [row["version"] for row in steps] == list(range(1, len(steps) + 1))
    whole = tmp_path / "whole"
    finish(start_training(whole, **SETTINGS, run__steps=len(steps)))
    expected = run_dir(whole).read_steps()
    for name in ("train/loss", "train/grad_norm"):
        curves = [[row[name] for row in rows] for rows in (steps, expected)]
        assert curves[0] == pytest.approx(curves[1], abs=1e-5)
