"""The same run with its trainer ranks under torchrun."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.loop.runs import DEADLINE_S, finish, run_dir, start_training


@pytest.mark.slow
def test_two_ranks_under_torchrun_train_like_two_of_our_own(tmp_path: Path) -> None:
    deterministic: dict[str, Any] = {
        "run__deterministic": True,
        "run__steps": 3,
        "trainer__ranks": 2,
    }
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    finish(start_training(own, **deterministic))
    process = start_training(theirs, trainer__launcher="torchrun", **deterministic)
    assert process.stdout is not None
    began = time.monotonic()
    told = None
    while told is None:
        assert time.monotonic() - began < DEADLINE_S
        told = re.search(r"(AREAL_SDK_TOKEN)=(\S+) .* (\S+:\d+)$", process.stdout.readline())
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    ranks = subprocess.Popen(
        [*command, "-m", "areal_sdk.launch.torchrun", told[3]],
        env={**os.environ, told[1]: told[2], "OMP_NUM_THREADS": "1"},
    )
    try:
        finish(process)
        assert ranks.wait(timeout=60) == 0
    finally:
        ranks.kill()
    losses = [[row["train/loss"] for row in run_dir(d).read_steps()] for d in (own, theirs)]
    assert len(losses[0]) == 3
    assert losses[0] == losses[1]
