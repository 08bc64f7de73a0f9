"""The table of hardware against published figures of other systems, and the doubt that a plan states."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from areal_sdk_plan.hardware import GPUS, Efficiencies, training_gpus
from areal_sdk_plan.sureness import MEASURED_FACTOR, TABLE_FACTOR

ROOT = Path(__file__).parents[2]
FITS = json.loads((ROOT / "docs" / "images" / "plan.json").read_text())["fit"]


@pytest.fixture(scope="module")
def verdict() -> ModuleType:
    """The benchmark that compares; it imports its neighbours by name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        import plan_verdict

    return plan_verdict


def test_the_constants_of_the_table_are_those_that_were_fitted() -> None:
    shipped = {name: getattr(Efficiencies(), name) for name in FITS["all"]}
    assert shipped == FITS["all"]


@pytest.mark.long
def test_the_stated_doubt_holds_for_published_figures_of_sources_left_out(
    verdict: ModuleType,
) -> None:
    found = verdict.verdicts(FITS)
    assert len(found) >= 180
    assert sum(held for *_, held in found) / len(found) >= 0.8
    for index in (
        0,
        1,
    ):  # the planner's own constants, and those fitted to the other half of the rows
        held = [verdict.holds(figures[index], TABLE_FACTOR) for figures in found]
        assert sum(held) / len(held) >= 0.8
    without = [figures[2] for figures in found]
    assert verdict.factor_of(without) == pytest.approx(TABLE_FACTOR, rel=0.05)
    assert verdict.measured_factor(without) == pytest.approx(MEASURED_FACTOR, rel=0.05)


def test_a_published_run_fits_the_gpus_that_it_had(verdict: ModuleType) -> None:
    published = json.loads((ROOT / "benchmarks" / "published.json").read_text())
    models = sys.modules["plan_published"].MODELS
    for gpu, gpus, model, weights, *_ in published["trainers"]:
        if weights == "full":
            assert training_gpus(models[model], GPUS[gpu]) <= gpus, (model, gpu)
    for row in published["runs"]:
        assert training_gpus(models[row["model"]], GPUS[row["gpu"]]) <= row.get(
            "ranks", row["gpus"]
        )
