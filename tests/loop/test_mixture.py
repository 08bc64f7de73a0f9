"""A mixture of experts learns end to end: what the local engine samples of it re-scores under its version."""

from pathlib import Path

import pytest

from tests.loop.rescore import largest_error
from tests.loop.runs import run_dir, train_and_keep_weights
from tests.toolbox.families import tiny_mixture

pytestmark = pytest.mark.long


def test_tokens_rescore_while_weights_change_in_the_middle_of_turns(tmp_path: Path) -> None:
    model = tiny_mixture(tmp_path / "model")
    train_and_keep_weights(
        tmp_path,
        model=str(model),
        run__steps=4,
        rollout__max_inflight=32,
        rollout__max_staleness=4,
    )
    report = largest_error(run_dir(tmp_path), tmp_path / "weights", model)
    assert report.num_tokens > 1000
    assert report.num_mid_turn_changes > 0, "no weights changed in the middle of a turn"
    assert len(report.versions) > 2
    assert report.max_error < 1e-3
