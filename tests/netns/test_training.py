"""A run over real addresses: the main process has a machine of its own, and so has each other process."""

from pathlib import Path
from typing import Any

import pytest

from tests.loop.runs import finish, run_dir, start_training
from tests.netns.cluster import Cluster
from tests.netns.network import why_not
from tests.toolbox.run_records import check_books, curve

pytestmark = [pytest.mark.slow, pytest.mark.skipif(bool(why := why_not()), reason=why or "can")]


def test_losses_over_real_addresses_are_those_of_one_machine_bit_for_bit(
    machines: Cluster, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"run__deterministic": True, "trainer__ranks": 2, "run__steps": 3}
    finish(start_training(tmp_path / "here", **settings))
    process = machines.start_training(tmp_path / "there", rollout__nodes=2, **settings)
    output = finish(process)
    assert curve(tmp_path / "there") == curve(tmp_path / "here")
    assert len(curve(tmp_path / "here")) == 3
    check_books(tmp_path / "there", trained=3 * 16)
    logs = {path.stem for path in run_dir(tmp_path / "there").logs.glob("*.log")}
    assert logs == {"engine", "node-0", "node-1", "driver", "trainer-0", "trainer-1"}, output
