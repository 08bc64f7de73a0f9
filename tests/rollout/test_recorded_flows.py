"""Dispatcher and buffer still do what was recorded of them, for who forecasts runs."""

import json
from typing import Any

import pytest

from tests.rollout.recorded_flows import RECORD, cases, played, script

KEPT = json.loads(RECORD.read_text(encoding="utf-8"))


def test_the_record_has_the_runs_that_it_would_be_made_of() -> None:
    kept = [{name: run[name] for name in ("script", "rollout")} for run in KEPT["runs"]]
    assert kept == cases()
    assert KEPT["scripts"]["1 0.1"] == script(1, 0.1)


@pytest.mark.parametrize("number", range(len(KEPT["runs"])))
def test_a_run_trains_the_recorded_groups_at_the_recorded_times(number: int) -> None:
    run: dict[str, Any] = KEPT["runs"][number]
    trained, ended = played(KEPT["scripts"][run["script"]], run["rollout"])
    assert trained == run["trained"]
    assert ended == pytest.approx(run["ended_at"], abs=1e-4)
