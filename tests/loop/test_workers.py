"""Training with agents in worker processes (`rollout.workers`)."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.loop.runs import (
    children_of,
    finish,
    run_dir,
    start_training,
    wait_for_steps,
)

DETERMINISTIC: dict[str, Any] = {"run__deterministic": True, "run__steps": 3}


def curve(directory: Path) -> list[tuple[float, float]]:
    rows = run_dir(directory).read_metrics(kind="step")
    return [(row["train/loss"], row["train/grad_norm"]) for row in rows]


@pytest.mark.slow
def test_deterministic_losses_are_those_of_inline_agents_bit_for_bit(tmp_path: Path) -> None:
    finish(start_training(tmp_path / "inline", **DETERMINISTIC))
    finish(start_training(tmp_path / "workers", rollout__workers=2, **DETERMINISTIC))
    found = curve(tmp_path / "workers")
    assert found == curve(tmp_path / "inline")
    assert len(set(found)) == 3
    books = run_dir(tmp_path / "workers").read_ledger()
    assert books is not None
    assert books["trained"] == 3 * 16


@pytest.mark.slow
def test_a_run_goes_on_when_its_workers_are_killed_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    process = start_training(tmp_path, run__steps=1000, rollout__workers=2)
    wait_for_steps(process, tmp_path, 1)
    for step in (2, 3):
        for pid in children_of(process.pid, f"agent-{step - 2}"):
            os.kill(pid, signal.SIGKILL)
        wait_for_steps(process, tmp_path, step + 1)
    process.send_signal(signal.SIGINT)
    finish(process, code=1)
    books = run_dir(tmp_path).read_ledger()
    assert books is not None
    dropped = sum(books["dropped"].values())
    assert books["started"] == books["running"] + books["buffered"] + books["trained"] + dropped
    assert books["running"] == 0
