"""Objectives against plain float64 loops, finite differences, and what must change nothing."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from areal_sdk.algorithms.objectives import (
    KL,
    Beyond,
    Clip,
    Critic,
    EntropyBonus,
    ImportanceWeight,
    Level,
    NoWeight,
    PolicyTerms,
    ReferenceKL,
    SecondMoment,
    SequenceRatio,
    SequenceTokenRatio,
    SoftGate,
    Surrogate,
    TruncatedRatio,
    Unbounded,
    kl_estimate,
)
from areal_sdk.errors import ConfigError

from .terms import make_terms

SEQUENCES = [0, 0, 0, 1, 1, 2, 2, 2, 2, 2]
ANY = NoWeight()


def random_terms(seed: int, *, spread: float = 0.5, **rest: Any) -> PolicyTerms:
    """Three trajectories; advantages of each sign, and of each token its own."""
    rng = np.random.default_rng(seed)
    q, p, b, reference = -np.abs(rng.normal(2.0, spread, (4, len(SEQUENCES))))
    return make_terms(
        q,
        p,
        b,
        rng.normal(size=len(SEQUENCES)),
        sequences=SEQUENCES,
        reference_T=torch.tensor(reference),
        entropies_T=torch.tensor(rng.random(len(SEQUENCES)), requires_grad=True),
        **rest,
    )


def rows(terms: PolicyTerms) -> list[tuple[float, float, float, float, int]]:
    q, p, b = (x.tolist() for x in (terms.current_T, terms.proximal_T, terms.behaviour_T))
    return list(zip(q, p, b, terms.advantages_T.tolist(), SEQUENCES, strict=True))


def mean_over(values: list[float], sequence: int) -> float:
    own = [v for v, s in zip(values, SEQUENCES, strict=True) if s == sequence]
    return sum(own) / len(own)


def clipped(r: float, a: float, low: float, high: float, dual: float = math.inf) -> float:
    gain = min(r * a, min(max(r, 1 - low), 1 + high) * a)
    return max(gain, dual * a) if a < 0 and dual < math.inf else gain


def gate(r: float, a: float, positive: float, negative: float) -> float:
    tau = positive if a > 0 else negative
    return 4 / tau / (1 + math.exp(-tau * (r - 1))) * a


def by_token(gain: Callable[[float, float], float]) -> Callable[[PolicyTerms], list[float]]:
    return lambda terms: [-gain(math.exp(q - p), a) for q, p, _, a, _ in rows(terms)]


def gspo(terms: PolicyTerms) -> list[float]:
    logs = [q - p for q, p, _, _, _ in rows(terms)]
    advantages = [a for _, _, _, a, _ in rows(terms)]
    return [
        -clipped(math.exp(mean_over(logs, s)), mean_over(advantages, s), 0.1, 0.2)
        for s in SEQUENCES
    ]


def weighted(weight: Callable[[float], float], *, whole: bool) -> Any:
    def reference(terms: PolicyTerms) -> list[float]:
        logs = [p - b for _, p, b, _, _ in rows(terms)]
        if whole:
            logs = [mean_over(logs, s) for s in SEQUENCES]
        return [
            -weight(math.exp(log)) * clipped(math.exp(q - p), a, 0.2, 0.28)
            for log, (q, p, _, a, _) in zip(logs, rows(terms), strict=True)
        ]

    return reference


def cap(w: float) -> float:
    return min(w, 1.3)


def cut(w: float) -> float:
    return w if w <= 1.3 else 0.0


CLIP = Clip(0.2, 0.28)
CASES: dict[str, tuple[Surrogate, Callable[[PolicyTerms], list[float]]]] = {
    "clip": (Surrogate(CLIP, ANY), by_token(lambda r, a: clipped(r, a, 0.2, 0.28))),
    "dual": (
        Surrogate(Clip(0.2, 0.28, 1.5), ANY),
        by_token(lambda r, a: clipped(r, a, 0.2, 0.28, 1.5)),
    ),
    "sapo": (Surrogate(SoftGate(1.0, 1.05), ANY), by_token(lambda r, a: gate(r, a, 1.0, 1.05))),
    "unbounded": (Surrogate(Unbounded(), ANY), by_token(lambda r, a: r * a)),
    "cispo": (
        Surrogate(TruncatedRatio(1.0, 0.5), ANY),
        lambda terms: [-min(math.exp(q - p), 1.5) * a * q for q, p, _, a, _ in rows(terms)],
    ),
    "gspo": (Surrogate(Clip(0.1, 0.2), ANY, SequenceRatio()), gspo),
    "clamp": (Surrogate(CLIP, ImportanceWeight(1.3)), weighted(cap, whole=False)),
    "mask": (
        Surrogate(CLIP, ImportanceWeight(1.3, beyond=Beyond.MASK)),
        weighted(cut, whole=False),
    ),
    "clamp whole": (
        Surrogate(CLIP, ImportanceWeight(1.3, Level.SEQUENCE)),
        weighted(cap, whole=True),
    ),
    "mask whole": (
        Surrogate(CLIP, ImportanceWeight(1.3, Level.SEQUENCE, Beyond.MASK)),
        weighted(cut, whole=True),
    ),
    "k1": (
        Surrogate(CLIP, ANY, penalties=(ReferenceKL(0.1, KL.K1),)),
        lambda t: [
            -clipped(math.exp(q - p), a, 0.2, 0.28) + 0.1 * (q - ref)
            for (q, p, _, a, _), ref in zip(rows(t), reference_of(t), strict=True)
        ],
    ),
    "k2": (
        Surrogate(CLIP, ANY, penalties=(ReferenceKL(0.1, KL.K2),)),
        lambda t: [
            -clipped(math.exp(q - p), a, 0.2, 0.28) + 0.1 * (q - ref) ** 2 / 2
            for (q, p, _, a, _), ref in zip(rows(t), reference_of(t), strict=True)
        ],
    ),
    "k3 and entropy": (
        Surrogate(CLIP, ANY, penalties=(ReferenceKL(0.1), EntropyBonus(0.01))),
        lambda t: [
            -clipped(math.exp(q - p), a, 0.2, 0.28)
            + 0.1 * (math.exp(ref - q) - 1 - (ref - q))
            - 0.01 * h
            for (q, p, _, a, _), ref, h in zip(
                rows(t), reference_of(t), entropies_of(t), strict=True
            )
        ],
    ),
}


def reference_of(terms: PolicyTerms) -> list[float]:
    assert terms.reference_T is not None
    return terms.reference_T.tolist()


def entropies_of(terms: PolicyTerms) -> list[float]:
    assert terms.entropies_T is not None
    return terms.entropies_T.tolist()


@pytest.mark.parametrize(("name", "seed"), list(itertools.product(CASES, range(4))))
def test_the_loss_of_each_term_is_that_of_a_plain_loop(name: str, seed: int) -> None:
    objective, reference = CASES[name]
    terms = random_terms(seed, spread=0.6)
    assert objective(terms).terms_T.tolist() == pytest.approx(reference(terms), rel=1e-12)


def test_a_token_that_became_unlikely_does_not_outweigh_all_others() -> None:
    difference = torch.tensor([0.5, -2.9, -3.1, -10.0, -1000.0], requires_grad=True)
    estimate = kl_estimate(difference, KL.K3)
    [slopes] = torch.autograd.grad(estimate.sum(), difference)
    assert slopes[:2].tolist() == pytest.approx([-math.expm1(-0.5), -math.expm1(2.9)], 1e-5)
    assert slopes[2:].tolist() == pytest.approx([-math.expm1(3.0)] * 3, 1e-5)
    assert (estimate.diff()[1:] > 0).all(), "further away costs more"
    assert torch.isfinite(estimate).all()


@pytest.mark.parametrize("name", [name for name in CASES if name != "cispo"])
def test_gradients_are_finite_differences(name: str) -> None:
    objective, reference = CASES[name]
    terms = random_terms(7)
    [gradient] = torch.autograd.grad(objective(terms).sum, terms.current_T)
    step = 1e-6
    for index, value in enumerate(terms.current_T.tolist()):
        sides = []
        for sign in (1, -1):
            with torch.no_grad():
                terms.current_T[index] = value + sign * step
            sides.append(sum(reference(terms)))
        with torch.no_grad():
            terms.current_T[index] = value
        assert gradient[index].item() == pytest.approx((sides[0] - sides[1]) / (2 * step), abs=1e-7)


def test_cispo_weighs_every_gradient_and_stops_none() -> None:
    terms = make_terms([0.0, 2.0], [0.0, 0.0], [0.0, 0.0], [1.0, 1.0])
    loss = Surrogate(TruncatedRatio(1.0, 0.5), ANY)(terms)
    [gradient] = torch.autograd.grad(loss.sum, terms.current_T)
    assert gradient.tolist() == [-1.0, -1.5]


def test_the_slope_of_a_soft_gate_at_one_is_that_of_the_ratio() -> None:
    terms = make_terms([0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [2.0, -2.0])
    loss = Surrogate(SoftGate(0.7, 3.0), ANY)(terms)
    [gradient] = torch.autograd.grad(loss.sum, terms.current_T)
    assert gradient.tolist() == pytest.approx([-2.0, 2.0])


def test_token_gradients_of_a_sequence_ratio_keep_the_credit_of_turns() -> None:
    terms = make_terms([0.1, 0.3], [0.0, 0.0], [0.0, 0.0], [1.0, -1.0])
    loss = Surrogate(Unbounded(), ANY, SequenceTokenRatio())(terms)
    [gradient] = torch.autograd.grad(loss.sum, terms.current_T)
    assert gradient.tolist() == pytest.approx([-math.exp(0.2), math.exp(0.2)])
    whole = Surrogate(Unbounded(), ANY, SequenceRatio())(terms)
    assert whole.sum.item() == 0.0, "one advantage for the trajectory: the mean of both"


def plain_m2(logs: list[float], threshold: float) -> list[bool]:
    """Leave out the largest until the mean of the squares is below the threshold; keep one."""
    kept = list(range(len(logs)))
    while len(kept) > 1 and sum(logs[i] ** 2 for i in kept) / len(kept) >= threshold:
        kept.remove(max(kept, key=lambda i: (abs(logs[i]), i)))
    return [i in kept for i in range(len(logs))]


@pytest.mark.parametrize("seed", range(5))
def test_the_second_moment_leaves_out_what_a_plain_loop_does(seed: int) -> None:
    logs = np.random.default_rng(seed).normal(0, 0.4, 40).round(2).tolist()
    kept = SecondMoment(0.04).keep(torch.tensor(logs, dtype=torch.float64))
    assert kept.tolist() == plain_m2(logs, 0.04)


def test_a_screened_out_term_has_no_gain_and_keeps_its_penalty() -> None:
    kept = torch.tensor([True, False])
    terms = make_terms(
        [0.0, 0.0], [0.0, 0.0], [0.0, 1.0], [1.0, 1.0], kept_T=kept, reference_T=torch.ones(2)
    )
    objective = Surrogate(CLIP, ANY, penalties=(ReferenceKL(1.0, KL.K2),))
    assert objective(terms).terms_T.tolist() == [-0.5, 0.5]
    assert objective(terms).totals["screened_out"] == 1
    assert objective(terms).totals["weight"] == 1.0, "it weighs nothing, also in what is reported"


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", CASES)
def test_a_masked_term_changes_nothing(name: str, poison: float) -> None:
    objective, _ = CASES[name]
    clean = random_terms(3)
    fields = {
        field: torch.cat([getattr(clean, field).detach(), torch.tensor([poison])])
        for field in ("current_T", "proximal_T", "behaviour_T", "reference_T", "entropies_T")
    }
    current_T = fields.pop("current_T").requires_grad_()
    dirty = make_terms(
        current_T,
        fields.pop("proximal_T"),
        fields.pop("behaviour_T"),
        [*clean.advantages_T.tolist(), 1.0],
        mask=[True] * 10 + [False],
        sequences=[*SEQUENCES, 2],
        **fields,
    )
    loss, expected = objective(dirty), objective(clean)
    assert loss.terms_T.tolist() == [*expected.terms_T.tolist(), 0.0]
    [gradient] = torch.autograd.grad(loss.sum, dirty.current_T)
    [clean_gradient] = torch.autograd.grad(expected.sum, clean.current_T)
    assert gradient.tolist() == [*clean_gradient.tolist(), 0.0]
    assert all(loss.totals[key].item() == expected.totals[key].item() for key in loss.totals)


def test_a_huge_ratio_is_held_by_the_dual_clip() -> None:
    terms = make_terms([50.0], [0.0], [0.0], [-1.0])
    loss = Surrogate(Clip(0.2, 0.28, 3.0), ANY)(terms)
    assert loss.sum.item() == 3.0
    assert loss.totals["clip_dual"] == 1
    [gradient] = torch.autograd.grad(loss.sum, terms.current_T)
    assert gradient.tolist() == [0.0]


def test_a_value_may_better_itself_by_no_more_than_the_clip() -> None:
    values = torch.tensor([0.5, 2.0], requires_grad=True)
    old, returns, mask = torch.tensor([0.0, 0.0]), torch.tensor([1.0, 3.0]), torch.ones(2).bool()
    loss = Critic(1e-3, clip=1.0).loss(values, old, returns, mask)
    # (0.5 - 1)^2 / 2; 2 counts as 1: (1 - 3)^2 / 2, and gives no gradient.
    assert loss.terms_T.tolist() == [0.125, 2.0]
    [gradient] = torch.autograd.grad(loss.sum, values)
    assert gradient.tolist() == [-0.5, 0.0]
    assert Critic(1e-3).loss(values, old, returns, mask).terms_T.tolist() == [0.125, 0.5]


def test_a_value_within_the_clip_is_never_counted_as_held() -> None:
    generator = torch.Generator().manual_seed(0)
    old, values = torch.randn(2, 1000, generator=generator) / 20.0
    returns = torch.zeros(1000)
    loss = Critic(1e-3, clip=0.5).loss(values, old, returns, torch.ones(1000).bool())
    assert loss.totals["value_clip_fraction"] == 0


@pytest.mark.parametrize("distance", [1e-4, -1e-4, 3e-3, 0.5, -2.5])
def test_a_small_distance_keeps_its_digits_in_float32(distance: float) -> None:
    exact = math.expm1(-distance) + distance
    found = kl_estimate(torch.tensor([distance]), KL.K3).item()
    # What is left is the rounding of two numbers of the size of the distance.
    assert abs(found - exact) <= 2e-7 * max(abs(distance), exact)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Clip(0.0, 0.2),
        lambda: Clip(0.2, 0.2, 1.0),
        lambda: SoftGate(0.0, 1.0),
        lambda: ImportanceWeight(0.0),
        lambda: SecondMoment(0.0),
        lambda: ReferenceKL(0.0),
        lambda: EntropyBonus(-1.0),
        lambda: Critic(0.0),
    ],
)
def test_a_number_that_means_nothing_is_refused_with_the_cure(make: Callable[[], object]) -> None:
    with pytest.raises(ConfigError, match=r"= .*: give"):
        make()
