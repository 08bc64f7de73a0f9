"""Losses, against numbers worked out by hand."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from areal_sdk.algorithms.objectives import (
    Clip,
    ImportanceWeight,
    Loss,
    NoWeight,
    PolicyTerms,
    Surrogate,
    imitation,
)

from .terms import make_terms as terms

BOUNDED, UNBOUNDED = ImportanceWeight(maximum=5.0), ImportanceWeight(maximum=math.inf)
SURROGATE = Surrogate(Clip(0.2, 0.28), BOUNDED)


def gradient(loss: Loss, of: PolicyTerms) -> Tensor:
    [grad] = torch.autograd.grad(loss.sum, of.current_T)
    return grad


def test_the_surrogate_is_weight_times_clipped_ratio_times_advantage() -> None:
    # r = e^0.1 is inside the clip range; w = e^0.2.
    t = terms([-0.9], [-1.0], [-1.2], [2.0])
    loss = SURROGATE(t)
    assert loss.sum.item() == pytest.approx(-math.exp(0.2) * math.exp(0.1) * 2.0)
    assert gradient(loss, t).item() == pytest.approx(-math.exp(0.2) * math.exp(0.1) * 2.0)
    assert loss.totals["clip_fraction"] == 0


@pytest.mark.parametrize(
    ("log_ratio", "advantage", "value", "has_gradient"),
    [
        (0.5, 1.0, 1.28, False),  # up far enough already
        (0.5, -1.0, -math.exp(0.5), True),  # up although it was bad: pull back
        (-0.5, -1.0, -0.8, False),  # down far enough already
        (-0.5, 1.0, math.exp(-0.5), True),
    ],
)
def test_the_clip_only_stops_going_further(
    log_ratio: float, advantage: float, value: float, has_gradient: bool
) -> None:
    t = terms([log_ratio], [0.0], [0.0], [advantage])
    loss = SURROGATE(t)
    assert loss.sum.item() == pytest.approx(-value)
    assert bool(gradient(loss, t).abs() > 0) is has_gradient
    assert loss.totals["clip_fraction"].item() == (0 if has_gradient else 1)


def ppo(q: Tensor, old: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """Plain PPO, as written in the paper."""
    ratio = (q - old).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages).sum()


logprobs = st.lists(st.floats(-5, -0.01), min_size=6, max_size=6)
signed = st.lists(st.floats(-3, 3), min_size=6, max_size=6)


@settings(deadline=None)  # the first call of an operator may be slow
@given(logprobs, logprobs, signed)
def test_where_the_sampler_is_the_proximal_policy_it_is_ppo(
    q: list[float], b: list[float], advantages: list[float]
) -> None:
    t = terms(q, b, b, advantages)
    decoupled = SURROGATE(t)
    plain = ppo(t.current_T, t.behaviour_T, t.advantages_T, 0.2, 0.28)
    torch.testing.assert_close(decoupled.sum, plain)
    [expected] = torch.autograd.grad(plain, t.current_T)
    torch.testing.assert_close(gradient(decoupled, t), expected)


def test_where_it_is_not_they_differ() -> None:
    t = terms([-1.0, -1.0], [-1.1, -1.1], [-1.1, -1.6], [1.0, 1.0])
    plain = ppo(t.current_T, t.behaviour_T, t.advantages_T, 0.2, 0.28)
    assert abs(SURROGATE(t).sum - plain) > 0.1


def test_the_trust_region_is_centred_on_the_proximal_policy_not_on_the_sampler() -> None:
    # q moved far from the sampler but not from p: PPO would clip, decoupled PPO must not.
    t = terms([-1.0], [-1.0], [-2.0], [1.0])
    loss = SURROGATE(t)
    assert gradient(loss, t).item() == pytest.approx(-math.e)


def test_each_weight_is_clamped_by_itself() -> None:
    t = terms([0.0] * 4, [0.0, 3.0, 1.0, 1.0], [0.0] * 4, [1.0] * 4)
    e = math.exp
    assert ImportanceWeight(maximum=4.0)(t)[0].tolist() == pytest.approx([1.0, 4.0, e(1), e(1)])


def test_the_weight_carries_no_gradient() -> None:
    t = terms([-1.0], [-1.0], [-2.0], [1.0])
    assert not BOUNDED(replace(t, proximal_T=t.current_T))[0].requires_grad


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("objective", [SURROGATE, Surrogate(Clip(0.2, 0.28), UNBOUNDED)])
def test_a_masked_term_gives_neither_value_nor_gradient(
    poison: float, objective: Surrogate
) -> None:
    clean = terms([-1.0], [-1.1], [-1.2], [1.0])
    dirty = terms(
        [-1.0, poison],
        [-1.1, poison],
        [-1.2, 0.0],
        [1.0, 1.0],
        mask=[True, False],
    )
    loss, expected = objective(dirty), objective(clean)
    assert loss.sum.item() == expected.sum.item()
    assert gradient(loss, dirty).tolist() == [*gradient(expected, clean).tolist(), 0.0]
    assert all(
        torch.equal(loss.totals[name].double(), expected.totals[name].double())
        for name in expected.totals
    )


def test_imitation_is_the_negative_logprob_of_what_is_shown() -> None:
    q = torch.tensor([-1.0, -2.0, math.nan], requires_grad=True)
    loss = imitation(q, torch.ones(3), torch.tensor([True, True, False]))
    assert loss.sum.item() == 3.0
    [grad] = torch.autograd.grad(loss.sum, q)
    assert grad.tolist() == [-1.0, -1.0, 0.0]


def test_imitation_weighs_its_tokens() -> None:
    q = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    loss = imitation(q, torch.tensor([1.0, 0.5, -0.25]), torch.ones(3, dtype=torch.bool))
    assert loss.sum.item() == 1.0 + 1.0 - 0.75
    [grad] = torch.autograd.grad(loss.sum, q)
    assert grad.tolist() == [-1.0, -0.5, 0.25]


def test_sums_over_any_split_add_up() -> None:
    generator = torch.Generator().manual_seed(0)
    q, p, b, a = torch.randn(4, 12, generator=generator, dtype=torch.float64).unbind()
    whole = SURROGATE(terms(q, p, b, a)).sum
    parts = [SURROGATE(terms(q[s], p[s], b[s], a[s])).sum for s in (slice(5), slice(5, 12))]
    torch.testing.assert_close(whole, parts[0] + parts[1])


def test_the_reported_divergences_are_of_the_policy_from_sampler_and_centre() -> None:
    # log r = log 2: (2 - 1) - log 2, counted once a token.
    t = terms([math.log(2), 0.0], [math.log(4), 0.0], [0.0, 0.0], [1.0, 1.0])
    totals = SURROGATE(t).totals
    assert totals["kl_behaviour"].item() == pytest.approx(1 - math.log(2))
    assert totals["kl_proximal"].item() == pytest.approx(0.5 - 1 + math.log(2))
    assert totals["weight"].item() == pytest.approx(5.0)


def test_a_policy_that_is_centred_on_its_sampler_reports_how_far_it_is_from_it() -> None:
    t = terms([math.log(2), 0.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0])
    totals = Surrogate(Clip(0.2, 0.28), NoWeight())(t).totals
    assert totals["kl_behaviour"].item() == pytest.approx(1 - math.log(2))
