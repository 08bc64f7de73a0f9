"""Phases of a published run, predicted for other numbers of GPUs from those of one."""

import json
from pathlib import Path

import pytest

from areal_sdk.planner.hardware import Efficiencies, fixed_part
from areal_sdk.planner.speeds import TrainerSpeed

PUBLISHED = Path(__file__).parents[2] / "benchmarks" / "published.json"
SYNC = json.loads(PUBLISHED.read_text())["verl 7B"]["sync"]
ASYNC = json.loads(PUBLISHED.read_text())["verl 7B"]["async"]
PASSES = Efficiencies().train_passes
KNOWN = SYNC["64"]
"""The only row that the predictions of synchronous phases use."""
FIXED_S = fixed_part(KNOWN["old_logp"], KNOWN["update"], passes=PASSES)


def phase_s(known_s: float, known_ranks: int, ranks: int) -> float:
    """A phase on `ranks` ranks, by its time on others and the part that is fixed."""
    work_s = (known_s - FIXED_S) * known_ranks
    return TrainerSpeed(token_s=work_s, fixed_s=FIXED_S, ranks=ranks).step_s(1.0)


@pytest.mark.parametrize("phase", ["old_logp", "update"])
@pytest.mark.parametrize("gpus", ["32", "128"])
def test_phases_of_the_trainer_follow_from_one_size(phase: str, gpus: str) -> None:
    predicted = phase_s(KNOWN[phase], 64, int(gpus))
    assert predicted == pytest.approx(SYNC[gpus][phase], rel=0.2)


@pytest.mark.parametrize("split", ["16:16", "64:64"])
def test_asynchronous_steps_follow_from_one_size(split: str) -> None:
    """The step is its update and the wait for samples; the wait is taken to stay."""
    known, measured = ASYNC["32:32"], ASYNC[split]
    update = phase_s(known["update"], 32, int(split.partition(":")[0]))
    assert update == pytest.approx(measured["update"], rel=0.2)
    assert update + known["gen_wait"] == pytest.approx(measured["step"], rel=0.2)
