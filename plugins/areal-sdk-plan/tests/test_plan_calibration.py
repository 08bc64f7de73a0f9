"""Speeds that were put into a record come out of the fit."""

import random
from typing import Any

import numpy as np
import pytest

from areal_sdk import ConfigError
from areal_sdk_plan.calibration.engine_fit import (
    averaged_count,
    count_at,
    fit_above_zero,
    fit_engine,
)
from areal_sdk_plan.calibration.recorded import RecordedCall, RecordedRun
from areal_sdk_plan.calibration.speeds_of_runs import fit_trainer
from areal_sdk_plan.workload import EpisodeShape, TurnShape, Workload

WORKLOAD = Workload(((EpisodeShape((TurnShape(10, 10, 10),)),),))
STEP_S, BESIDE_S, WAY_S = 0.010, 0.001, 0.004


def recorded(
    steps: list[dict[str, Any]], calls: list[RecordedCall] | None = None, **config: Any
) -> RecordedRun:
    return RecordedRun("runs/x", config, steps, calls or [], WORKLOAD)


def rounds(count: int) -> list[RecordedCall]:
    """Several requests at a time, all of a length, one round after the other."""
    generator = random.Random(0)
    calls, now = [], 1.0
    for _ in range(count):
        size, length = generator.randint(1, 16), generator.randint(2, 200)
        step = STEP_S + BESIDE_S * (size - 1)
        first = now + WAY_S + step
        ended = first + (length - 1) * step
        calls += [RecordedCall(now, first, ended, 0, length)] * size
        now = ended + 0.01
    return calls


def test_the_decode_curve_is_found_again() -> None:
    calls = rounds(60)
    rows = [{"step": 1, "time": 0.0}, {"step": 2, "time": 1e9, "engine_update_s": 0.25}]
    engine, most = fit_engine([recorded(rows, calls)], [1], [])
    assert engine.decode.step_s(1) == pytest.approx(STEP_S, rel=0.01)
    assert engine.decode.step_s(12) == pytest.approx(STEP_S + 11 * BESIDE_S, rel=0.01)
    assert engine.request_s == pytest.approx(WAY_S, rel=0.05)
    assert engine.swap_s == 0.25
    assert engine.cores == 0.0
    assert 14 <= most <= 16


def test_the_trainer_is_found_again_from_runs_with_one_and_two_ranks() -> None:
    def steps(ranks: int) -> list[dict[str, Any]]:
        generator = random.Random(ranks)
        tokens = [generator.randint(1000, 4000) for _ in range(30)]
        return [
            {
                "train/num_computed": float(num),
                "train/step_s": 0.5 + 0.001 * num / ranks + (0.2 if ranks > 1 else 0.0),
                "train/publish_s": 0.1 * ranks,
            }
            for num in tokens
        ]

    runs = [recorded(steps(n), trainer={"ranks": n}) for n in (1, 2)]
    trainer = fit_trainer(runs, [])
    assert trainer.fixed_s == pytest.approx(0.5, rel=0.01)
    assert trainer.token_s == pytest.approx(0.001, rel=0.01)
    assert trainer.sync_s == pytest.approx(0.2, rel=0.02)
    assert (trainer.publish_s, trainer.gather_s) == pytest.approx((0.1, 0.1))
    assert trainer.cores == 0.0


def test_batches_of_one_size_leave_a_note() -> None:
    rows = [{"train/num_computed": 100.0, "train/step_s": 2.0} for _ in range(12)]
    notes: list[str] = []
    trainer = fit_trainer([recorded(rows, trainer={"ranks": 1})], notes)
    assert trainer.step_s(100) == pytest.approx(2.0)
    assert any("nearly equal" in note for note in notes)


def test_a_record_without_first_tokens_is_refused() -> None:
    calls = [RecordedCall(float(i), float(i), i + 1.0, 5, 10) for i in range(30)]
    rows = [{"step": 1, "time": 0.0}, {"step": 2, "time": 1e9}]
    with pytest.raises(ConfigError, match="older version"):
        fit_engine([recorded(rows, calls)], [1], [])


def test_open_intervals_are_counted() -> None:
    began, ended = np.array([0.0, 1.0, 1.0]), np.array([2.0, 3.0, 2.0])
    assert count_at(began, ended, np.array([0.5, 1.5, 2.5])).tolist() == [1.0, 3.0, 1.0]
    assert averaged_count(began, ended).tolist() == pytest.approx([2.0, 2.0, 3.0])


def test_no_coefficient_is_below_zero() -> None:
    columns = np.stack([np.ones(50), np.arange(50.0)], axis=1)
    fixed, slope = fit_above_zero(columns, 10.0 - 0.1 * np.arange(50.0))
    assert slope == 0.0
    assert fixed > 0.0
