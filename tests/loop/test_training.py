"""Asynchronous training, end to end, in real processes."""

from pathlib import Path

import pytest

from tests.loop.rescore import largest_error
from tests.loop.runs import run_dir, train_and_keep_weights


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose weights change in the middle of turns; every version is kept."""
    directory = tmp_path_factory.mktemp("run")
    train_and_keep_weights(
        directory, run__steps=6, rollout__max_inflight=32, rollout__max_staleness=4
    )
    return directory


def test_every_trained_token_rescores_under_the_version_it_names(trained: Path) -> None:
    report = largest_error(run_dir(trained), trained / "weights")
    assert report.num_tokens > 1000
    assert report.num_mid_turn_changes > 0, "no weights changed in the middle of a turn"
    assert len(report.versions) > 2
    assert report.max_error < 1e-3


def test_staleness_stays_within_eta(trained: Path) -> None:
    steps = run_dir(trained).read_steps()
    assert len(steps) == 6
    assert max(step["batch/staleness_max"] for step in steps) <= 4
    assert any(step["batch/staleness_max"] > 0 for step in steps), "nothing was asynchronous"


def test_the_ledger_balances_at_the_end(trained: Path) -> None:
    books = run_dir(trained).read_ledger()
    assert books is not None
    dropped = sum(books["dropped"].values())
    assert books["started"] == books["running"] + books["buffered"] + books["trained"] + dropped
    assert books["trained"] == 6 * 16
    assert books["running"] == 0, "what ran when the run ended was booked as cancelled"


def test_the_exported_model_loads_in_transformers(trained: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    final = trained / "run" / "checkpoints" / "final"
    model = AutoModelForCausalLM.from_pretrained(final)
    assert model.num_parameters() > 100_000
    assert AutoTokenizer.from_pretrained(final).decode([97, 98]) == "ab"


def test_the_stored_settings_hold_no_secret_and_can_be_loaded_again(trained: Path) -> None:
    from areal_sdk.config import load_config

    config = load_config(file=run_dir(trained).config)
    assert config.model == "tiny"
    assert config.gateway.admin_key is None
