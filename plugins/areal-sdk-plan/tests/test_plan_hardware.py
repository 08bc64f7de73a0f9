"""The table of hardware bends where hardware does."""

from dataclasses import replace

import pytest

from areal_sdk.shapes import SHAPES
from areal_sdk_plan.hardware import GPUS, Efficiencies, trainer_speed
from areal_sdk_plan.parts import Described, from_hardware
from areal_sdk_plan.simulation.run import simulate
from areal_sdk_plan.splits import with_rules


@pytest.mark.parametrize(("model", "output"), [("1.5B", 7500), ("7B", 4000)])
def test_throughput_bends_where_published_runs_bend(model: str, output: int) -> None:
    """Published systems keep about 0.6 of the throughput of a GPU from 32 to 256 GPUs."""
    described = from_hardware(
        model, "h800", workload=Described(output=output, context=32768), minibatches=4
    )
    parts = with_rules(described.parts, batch=8192)

    def of_a_gpu(gpus: int) -> float:
        trainer = replace(parts.setup.trainer, ranks=gpus // 4)
        setup = replace(parts.setup, num_engines=gpus * 3 // 4, trainer=trainer)
        setup = setup.with_rollout(max_staleness=2, max_inflight=3 * 8192)
        return simulate(setup, steps=4, warm=2).tokens_per_s / gpus

    assert 0.4 < of_a_gpu(256) / of_a_gpu(32) < 0.85


def test_more_ranks_never_make_the_collectives_of_a_step_cheaper() -> None:
    for gpu in ("h100", "4090"):
        speeds = [
            trainer_speed(SHAPES["7B"], GPUS[gpu], ranks=ranks, efficiency=Efficiencies())
            for ranks in (2, 8, 16, 256)
        ]
        seconds = [
            speed.collectives.step_s(1000.0, speed.ranks) for speed in speeds if speed.collectives
        ]
        assert seconds == sorted(seconds)
        assert len(seconds) == 4
