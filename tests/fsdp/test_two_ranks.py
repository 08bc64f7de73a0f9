"""Two ranks measure what they hold and send."""

import json
import subprocess
import sys
from typing import Any

import pytest

from areal_sdk.config import TrainerSection
from areal_sdk.fsdp.memory.predicted import predict
from areal_sdk.models.tiny import make_tiny_model
from areal_sdk.shapes import ModelShape
from tests.toolbox.rank_traffic import Sent, predict_sent

from .two_ranks import ADAPTER, MICROBATCH_TOKENS, SENT

pytestmark = pytest.mark.long

NUM_LAYERS = 6
SIZE = {"num_layers": NUM_LAYERS, "hidden_size": 128, "intermediate_size": 512}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Measurements of each rank."""
    directory = tmp_path_factory.mktemp("ranks")
    make_tiny_model(directory / "model", **SIZE)
    command = [sys.executable, "-m", "tests.fsdp.two_ranks", str(directory)]
    ranks = [subprocess.Popen([*command, str(rank)]) for rank in range(2)]
    codes = [rank.wait(timeout=900) for rank in ranks]
    assert codes == [0, 0]
    config = json.loads((directory / "model" / "config.json").read_text())
    found = [json.loads((directory / f"{rank}.json").read_text()) for rank in range(2)]
    return [{**rank, "config": config} for rank in found]


def test_after_the_forward_fewer_weights_are_whole_than_a_layer_has(
    measured: list[dict[str, Any]],
) -> None:
    for rank in measured:
        assert rank["forward"]["left"] < rank["forward"]["layer"], rank


def test_no_rank_takes_more_for_loading_than_it_keeps(measured: list[dict[str, Any]]) -> None:
    for rank in measured:
        assert rank["loading"]["largest"] <= rank["loading"]["largest_part"] + 64
        assert rank["loading"]["peak"] < 0.6 * rank["loading"]["whole"]


def test_gradients_are_summed_once_an_update_or_with_each_micro_batch(
    measured: list[dict[str, Any]],
) -> None:
    parts = NUM_LAYERS + 1  # the layers, and the rest
    for rank in measured:
        deferred, each = rank["deferred"], rank["each"]
        assert deferred["microbatches"] == each["microbatches"] > 1
        assert deferred["calls"]["scattered"] == parts
        assert each["calls"]["scattered"] == parts * each["microbatches"]


@pytest.mark.parametrize("name", SENT)
def test_the_bytes_that_a_rank_sends_are_those_of_the_theory(
    measured: list[dict[str, Any]], name: str
) -> None:
    for rank in measured:
        found, settings = rank[name], TrainerSection(**SENT[name])
        model = ModelShape.of(rank["config"])
        predicted = predict_sent(
            model,
            settings,
            num_microbatches=found["microbatches"],
            num_measured=found["measured"],
            num_recorded=found["recorded"],
        )
        sent = Sent(**found["sent"])
        # A row more than the table's 263 fills it up: as many on each rank.
        assert sent.gathered == pytest.approx(predicted.gathered, rel=2e-4)
        assert sent.scattered == pytest.approx(predicted.scattered, rel=2e-4)
        assert sent.reduced - predicted.reduced < 2000, "numbers of the metrics"
        assert sent.reduced >= predicted.reduced


def test_the_passes_that_measure_an_adapter_gather_the_frozen_table_once(
    measured: list[dict[str, Any]],
) -> None:
    for rank in measured:
        found = rank["adapter"]
        model = ModelShape.of(rank["config"])
        assert model.is_tied
        assert found["measured"] > 1
        predicted = predict_sent(
            model,
            TrainerSection(**ADAPTER),
            num_microbatches=found["microbatches"],
            num_measured=found["measured"],
        )
        num_gathers = 2 * found["microbatches"] + found["measured"]
        share = 1 / 2  # two ranks: each sends what the other lacks
        expected = predicted.gathered + share * (
            2 * found["trained"] * num_gathers  # in the layers, in bfloat16
            - 4 * model.table * (found["measured"] - 1)
        )
        assert found["sent"]["gathered"] == pytest.approx(expected, rel=2e-4)


@pytest.mark.parametrize(
    ("step", "settings"),
    [
        ("step", {}),
        ("step, each", {"defer_gradient_sync": False}),
        ("step, together", {"sequence_ranks": 2}),
    ],
)
def test_the_peak_of_a_rank_is_predicted(
    measured: list[dict[str, Any]], step: str, settings: dict[str, Any]
) -> None:
    for rank in measured:
        model = ModelShape.of(rank["config"])
        predicted = predict(
            model, TrainerSection(ranks=2, **settings), num_tokens=MICROBATCH_TOKENS
        )
        found = rank[step]
        assert predicted.lasting == pytest.approx(found["lasting"], rel=0.02)
        assert predicted.total == pytest.approx(found["lasting"] + found["step"], rel=0.15), found
