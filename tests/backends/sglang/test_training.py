"""A run on a real SGLang server, end to end: every trained token re-scores under its version."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from areal_sdk_sglang.install import SGLangEnvironment
from tests.loop.rescore import largest_error
from tests.loop.runs import run_dir, train_and_keep_weights
from tests.toolbox.families import tiny_mixture

pytestmark = pytest.mark.long

DEADLINE_S = 900.0
"""Seconds that a server may take to start: minutes, on a busy machine."""


def train(
    directory: Path,
    environment: SGLangEnvironment,
    *,
    settings: Sequence[str],
    model: str = "tiny",
) -> str:
    """Train, and return what the run printed."""
    return train_and_keep_weights(
        directory,
        *(part for setting in settings for part in ("--set", setting)),
        env={"AREAL_SDK_SGLANG_ENV": str(environment.python.parents[1])},
        deadline_s=DEADLINE_S,
        model=model,
        engine__name="sglang",
        run__steps=8,  # more than may be sampled before the first new weights arrive
        rollout__max_inflight=32,
        rollout__max_staleness=4,
        agent__more_tokens=120,  # sampling takes longer than training: servers are never idle
    )


def check(directory: Path, model: Path | None = None) -> None:
    """Every trained token re-scores, weights changed in the middle of turns, the books balance."""
    report = largest_error(run_dir(directory), directory / "weights", model)
    assert report.num_tokens > 1000
    assert report.num_mid_turn_changes > 0, "no weights changed in the middle of a turn"
    assert len(report.versions) > 2
    assert report.max_error < 1e-3
    books = run_dir(directory).read_ledger()
    assert books is not None
    dropped = sum(books["dropped"].values())
    assert books["started"] == books["running"] + books["buffered"] + books["trained"] + dropped


def test_an_agent_trains_on_sglang(environment: SGLangEnvironment, tmp_path: Path) -> None:
    train(tmp_path, environment, settings=["engine.sglang.transport=disk"])
    check(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["tensor", "distributed"])
@pytest.mark.parametrize("interrupt", ["retract", "abort"])
def test_the_same_holds_for_every_transport(
    transport: str, interrupt: str, environment: SGLangEnvironment, tmp_path: Path
) -> None:
    settings = [f"engine.sglang.transport={transport}", f"engine.sglang.interrupt={interrupt}"]
    settings += ["engine.sglang.servers=2"]
    output = train(tmp_path, environment, settings=settings)
    made_good_over_files = re.findall(r"weights \d+(?: again)?: .*", output)
    assert not made_good_over_files
    check(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["disk", "tensor"])
def test_a_mixture_of_experts_trains_on_sglang(
    transport: str, environment: SGLangEnvironment, tmp_path: Path
) -> None:
    model = tiny_mixture(tmp_path / "model")
    settings = [f"engine.sglang.transport={transport}"]
    output = train(tmp_path, environment, settings=settings, model=str(model))
    assert not re.findall(r"weights \d+(?: again)?: .*", output)
    check(tmp_path, model)


@pytest.mark.slow
def test_an_adapter_trains_on_sglang_whose_servers_get_merged_weights(
    environment: SGLangEnvironment, tmp_path: Path
) -> None:
    settings = ["engine.sglang.servers=2", "trainer.lora.rank=4", "trainer.learning_rate=1e-2"]
    output = train(tmp_path, environment, settings=settings)
    assert not re.findall(r"weights \d+(?: again)?: .*", output)
    check(tmp_path)


@pytest.mark.slow
def test_engine_and_trainer_take_turns_on_one_device(
    environment: SGLangEnvironment, tmp_path: Path
) -> None:
    train(tmp_path, environment, settings=["engine.sglang.colocated=true"])
    check(tmp_path)
