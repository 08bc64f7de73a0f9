"""Losses of pairs: by hand, against float64 autograd, and at their edges."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from areal_sdk.finetune.preferences import (
    DPO,
    PairScores,
    bradley_terry,
    log_sigmoid,
    sigmoid,
    summary,
)

SCORES = st.floats(-1e4, 1e4)
LENGTHS = st.integers(1, 5000)


def test_dpo_by_hand() -> None:
    # margin = 0.1 * ((-8 - -10) - (-7 - -6)) = 0.1 * (2 + 1) = 0.3
    pair = DPO(beta=0.1)(PairScores(-8.0, -7.0), PairScores(-10.0, -6.0), (4, 2))
    assert pair.margin == pytest.approx(0.3)
    assert pair.loss == pytest.approx(math.log(1 + math.exp(-0.3)))
    assert pair.chosen == pytest.approx(0.1 / (1 + math.exp(0.3)))
    assert pair.rejected == -pair.chosen


def test_length_normalised_dpo_compares_means() -> None:
    # margin = 2 * (2 / 4 - -1 / 2) = 2
    dpo = DPO(beta=2.0, length_normalised=True)
    pair = dpo(PairScores(-8.0, -7.0), PairScores(-10.0, -6.0), (4, 2))
    assert pair.margin == pytest.approx(2.0)
    assert pair.chosen == pytest.approx(sigmoid(-2.0) * 2.0 / 4)
    assert pair.rejected == pytest.approx(-sigmoid(-2.0) * 2.0 / 2)


@given(SCORES, SCORES, SCORES, SCORES, LENGTHS, LENGTHS, st.booleans())
def test_dpo_agrees_with_autograd_in_float64(
    q_c: float, q_r: float, ref_c: float, ref_r: float, n_c: int, n_r: int, normalised: bool
) -> None:
    chosen, rejected = (
        torch.tensor(q, dtype=torch.float64, requires_grad=True) for q in (q_c, q_r)
    )
    ratio_c, ratio_r = chosen - ref_c, rejected - ref_r
    margin = ratio_c / n_c - ratio_r / n_r if normalised else ratio_c - ratio_r
    loss = -torch.nn.functional.logsigmoid(0.5 * margin)
    grad_c, grad_r = torch.autograd.grad(loss, (chosen, rejected))
    dpo = DPO(beta=0.5, length_normalised=normalised)
    ours = dpo(PairScores(q_c, q_r), PairScores(ref_c, ref_r), (n_c, n_r))
    assert ours.loss == pytest.approx(loss.item(), rel=1e-9, abs=1e-12)
    assert -ours.chosen == pytest.approx(grad_c.item(), rel=1e-9, abs=1e-12)
    assert -ours.rejected == pytest.approx(grad_r.item(), rel=1e-9, abs=1e-12)


@given(SCORES, SCORES)
def test_bradley_terry_agrees_with_autograd_in_float64(r_c: float, r_r: float) -> None:
    chosen, rejected = (
        torch.tensor(r, dtype=torch.float64, requires_grad=True) for r in (r_c, r_r)
    )
    loss = -torch.nn.functional.logsigmoid(chosen - rejected)
    grads = torch.autograd.grad(loss, (chosen, rejected))
    ours = bradley_terry(PairScores(r_c, r_r))
    assert ours.loss == pytest.approx(loss.item(), rel=1e-9, abs=1e-12)
    assert (-ours.chosen, -ours.rejected) == pytest.approx(
        tuple(grad.item() for grad in grads), rel=1e-9, abs=1e-12
    )


def test_equal_halves_pull_apart_with_half_the_strength() -> None:
    pair = bradley_terry(PairScores(3.0, 3.0))
    assert (pair.loss, pair.chosen, pair.rejected) == (math.log(2.0), 0.5, -0.5)


def test_huge_margins_overflow_nothing() -> None:
    won, lost = bradley_terry(PairScores(1e300, -1e300)), bradley_terry(PairScores(-1e6, 1e6))
    assert (won.loss, won.chosen) == (0.0, 0.0)
    assert (lost.loss, lost.chosen) == (2e6, 1.0)
    assert log_sigmoid(-800.0) == -800.0


def test_a_score_that_is_not_finite_stays_one() -> None:
    pair = bradley_terry(PairScores(math.nan, 0.0))
    assert math.isnan(pair.loss)
    assert math.isnan(pair.chosen)


def test_a_tie_is_half_right() -> None:
    ties = [bradley_terry(PairScores(0.0, 0.0))] * 2
    assert summary([*ties, bradley_terry(PairScores(1.0, 0.0))])["accuracy"] == pytest.approx(2 / 3)
