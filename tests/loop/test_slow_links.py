"""A run whose processes are at the other end of slow links: it waits, and takes nothing for dead."""

from pathlib import Path
from typing import Any

import pytest

from tests.loop.runs import finish, run_dir, start_training, steps_so_far
from tests.toolbox.run_records import check_books

PLUGIN = str(Path(__file__).with_name("slow_links.py"))
STEPS, ETA = 6, 2


@pytest.mark.slow
def test_a_run_over_slow_links_loses_nothing_and_says_what_it_waits_for(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "cluster__launcher": "slow",
        "cluster__slow__delay_s": 0.05,
        "cluster__slow__bytes_per_s": 1e6,
        "rollout__nodes": 2,
        "rollout__max_staleness": ETA,
        "run__steps": STEPS,
    }
    process = start_training(tmp_path, "--plugin", PLUGIN, **settings)
    waits: set[str] = set()
    while process.poll() is None and steps_so_far(tmp_path) < STEPS:
        live = (tmp_path / "run" / "live.json").is_file() and run_dir(tmp_path).read_live()
        waits |= {wait["name"] for wait in (live or {}).get("waits", ())}
    output = finish(process)
    assert "takes its place" not in output
    assert "starting it again" not in output
    check_books(tmp_path, trained=STEPS * 16)
    rows = run_dir(tmp_path).read_steps()
    assert len(rows) == STEPS
    assert max(row["batch/staleness_max"] for row in rows) <= ETA
    assert any(wait.startswith(("rollouts:", "node-")) for wait in waits), waits
