"""Our algorithms against the semantics of AReaL's configuration, on random inputs.

`docs/algorithms.md`, "The same as AReaL, and where not", names what the last tests here show. AReaL's own functions
are called by `benchmarks/against_areal.py`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from areal_sdk.algorithms import (
    Algorithm,
    Beyond,
    Clip,
    Evidence,
    GroupRelative,
    GroupStd,
    ImportanceWeight,
    Level,
    NoWeight,
    PolicyTerms,
    SecondMoment,
    SequenceRatio,
    Surrogate,
)
from areal_sdk.algorithms.objectives import interpolate
from areal_sdk.algorithms.presets import areal, grpo, litepo, naive_ppo, rloo
from areal_sdk.errors import ConfigError
from areal_sdk.trajectory import Trajectory, TrajectoryGroup

from .areal_reference import (
    Actor,
    Norm,
    Sample,
    Token,
    advantages,
    kept_by_m2po,
    loglinear_proximal,
    loss,
)
from .terms import make_terms

EXACT = Norm(std_unbiased=False, eps=0.0)
BY_GROUP = Norm("group", "group", std_unbiased=False, eps=0.0)
PAPER = Actor(
    reward_scaling=10.0, reward_bias=-0.5, adv_norm=EXACT, behav_imp_weight_cap=5.0
)  # the defaults of `areal`


def changed(**keys: Any) -> Actor:
    return Actor(**{**vars(PAPER), **keys})


def random_samples(seed: int, *, sizes: Sequence[int] = (4, 3, 4)) -> list[list[Sample]]:
    """Answers of 1 to 9 tokens; rewards mostly 0 and 1, some huge."""
    rng = np.random.default_rng(seed)

    def sample() -> Sample:
        b, reference = -np.abs(rng.normal(2.0, 1.0, (2, rng.integers(1, 10))))
        reward = rng.choice([0.0, 1.0, 1.0, -0.3, 9.0])
        return Sample(float(reward), b.tolist(), reference.tolist())

    return [[sample() for _ in range(size)] for size in sizes]


def as_groups(samples: list[list[Sample]]) -> list[TrajectoryGroup]:
    def trajectory(name: str, sample: Sample) -> Trajectory:
        count = len(sample.logprobs)
        return Trajectory(
            episode_id=name,
            task_id="t",
            tokens=(1, *[2] * count),
            loss_mask=(False, *[True] * count),
            logprobs=(0.0, *sample.logprobs),
            versions=(-1, *[0] * count),
            temperatures=(1.0,) * (count + 1),
            turn_of_token=(-1, *[0] * count),
            reward=sample.reward,
        )

    return [
        TrajectoryGroup(
            f"{g}", "t", tuple(trajectory(f"{g}-{i}", sample) for i, sample in enumerate(group))
        )
        for g, group in enumerate(samples)
    ]


def ours(algorithm: Algorithm, samples: list[list[Sample]]) -> list[list[list[float]]]:
    groups = as_groups(samples)
    if algorithm.shaping is not None:
        groups = algorithm.shaping(groups)
    reference = [[np.array([0.0, *s.reference]) for s in group] for group in samples]
    found = algorithm.advantages(groups, Evidence(reference=reference)).advantages
    return [[row[1:].tolist() for row in group] for group in found]


def flat(rows: list[list[list[float]]]) -> list[float]:
    return [value for group in rows for row in group for value in row]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("algorithm", "actor"),
    [
        (areal(), PAPER),
        (
            areal(reward_scale=1.0, reward_bias=0.0, reward_clip=0.7),
            Actor(reward_clip=0.7, adv_norm=EXACT),
        ),
        (areal(kl=0.3), changed(kl_ctl=0.3)),
        (areal(kl=0.1, token_discount=0.9), changed(kl_ctl=0.1, discount=0.9)),
        (
            areal(overlong_limit=8, overlong_margin=4, overlong_penalty=0.5),
            changed(overlong_tokens=4, max_new_tokens=8, overlong_penalty_factor=0.5),
        ),
        (areal(group_norm=True), changed(reward_norm=BY_GROUP)),
        (grpo(), Actor(reward_norm=BY_GROUP)),
        (rloo(), Actor(reward_norm=Norm("group", None, mean_leave1out=True))),
    ],
    ids=["paper", "bounded", "kl", "discounted", "overlong", "groups", "grpo", "rloo"],
)
def test_advantages_are_those_of_areals_configuration(
    algorithm: Algorithm, actor: Actor, seed: int
) -> None:
    samples = random_samples(seed)
    if actor.overlong_tokens is not None:  # no answer is longer than the limit
        samples = [[Sample(s.reward, s.logprobs[:8], s.reference[:8]) for s in g] for g in samples]
    expected = flat(advantages(actor, samples))
    assert flat(ours(algorithm, samples)) == pytest.approx(expected, rel=1e-6, abs=1e-6)


def random_tokens(seed: int, *, spread: float) -> list[Token]:
    """Three sequences and a fourth that is masked; sampler and centre apart by about `spread`."""
    rng = np.random.default_rng(seed)
    sequences = np.repeat(range(4), [5, 1, 7, 3])
    logprobs = -np.abs(2.0 + spread * rng.normal(size=(len(sequences), 3)))
    signs = rng.normal(size=len(sequences))
    return [
        Token(float(q), float(p), float(b), float(sign), int(sequence), bool(sequence != 3))
        for (q, p, b), sign, sequence in zip(logprobs, signs, sequences, strict=True)
    ]


def as_terms(tokens: Sequence[Token]) -> PolicyTerms:
    return make_terms(
        [t.q for t in tokens],
        [t.p for t in tokens],
        [t.b for t in tokens],
        [t.advantage for t in tokens],
        mask=[t.trained for t in tokens],
        sequences=[t.sequence for t in tokens],
    )


def our_loss(algorithm: Algorithm, tokens: Sequence[Token]) -> tuple[float, list[float]]:
    """Summed and divided as the trainer does."""
    terms = as_terms(tokens)
    shares = algorithm.aggregation([max(sum(t.trained for t in tokens), 1)])
    total = (algorithm.objective(terms).terms_T * shares.weights[0]).sum() / shares.divisor
    [slopes] = torch.autograd.grad(total, terms.current_T)
    return total.item(), slopes.tolist()


SEQUENCES = Algorithm(
    GroupRelative(discount=1.0), Surrogate(Clip(0.2, 0.2), ImportanceWeight(5.0), SequenceRatio())
)


@pytest.mark.parametrize("spread", [0.1, 0.5, 3.0])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("algorithm", "keys"),
    [
        (areal(), {}),
        (areal(clip_high=0.28), {"eps_clip_higher": 0.28}),
        (areal(clip_low=0.4, clip_high=0.4, dual_clip=3.0), {"eps_clip": 0.4, "c_clip": 3.0}),
        (areal(max_weight=1.2), {"behav_imp_weight_cap": 1.2}),
        (
            areal(max_weight=1.2, beyond=Beyond.CLAMP),
            {"behav_imp_weight_cap": 1.2, "behave_imp_weight_mode": "token_truncate"},
        ),
        (
            areal(max_weight=1.2, weight_level=Level.SEQUENCE),
            {"behav_imp_weight_cap": 1.2, "behave_imp_weight_mode": "sequence_mask"},
        ),
        (
            areal(max_weight=1.2, weight_level=Level.SEQUENCE, beyond=Beyond.CLAMP),
            {"behav_imp_weight_cap": 1.2, "behave_imp_weight_mode": "sequence_truncate"},
        ),
        (
            SEQUENCES,
            {"importance_sampling_level": "sequence", "behave_imp_weight_mode": "token_truncate"},
        ),
    ],
    ids=[
        "paper",
        "asymmetric",
        "dual",
        "capped",
        "clamped",
        "by sequence",
        "sequence clamped",
        "gspo",
    ],
)
def test_loss_and_gradient_are_those_of_areals_configuration(
    algorithm: Algorithm, keys: dict[str, Any], seed: int, spread: float
) -> None:
    tokens = random_tokens(seed, spread=spread)
    expected, slopes = loss(changed(**keys), tokens)
    found, found_slopes = our_loss(algorithm, tokens)
    assert found == pytest.approx(expected, rel=1e-12)
    assert found_slopes == pytest.approx(slopes, rel=1e-12, abs=1e-15)


def test_without_decoupling_and_recomputed_logprobs_it_is_naive_ppo() -> None:
    tokens = [Token(t.q, t.b, t.b, t.advantage) for t in random_tokens(0, spread=0.5)]
    expected, slopes = loss(Actor(eps_clip_higher=0.28), tokens)
    found, found_slopes = our_loss(naive_ppo(), tokens)
    assert found == pytest.approx(expected, rel=1e-12)
    assert found_slopes == pytest.approx(slopes, rel=1e-12)


def test_a_batch_whose_tokens_are_all_masked_has_no_loss_and_no_gradient() -> None:
    tokens = [
        Token(t.q, t.p, t.b, t.advantage, trained=False) for t in random_tokens(0, spread=0.5)
    ]
    assert loss(PAPER, tokens) == (0.0, [0.0] * len(tokens))
    total, slopes = our_loss(areal(), tokens)
    assert (total, slopes) == (0.0, [0.0] * len(tokens))


def test_group_norm_comes_before_what_tells_tokens_apart() -> None:
    for options in ({"kl": 0.1}, {"token_discount": 0.9}):
        with pytest.raises(ConfigError, match="leave group_norm out, or choose grpo"):
            areal(group_norm=True, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("threshold", [1e-3, 0.04, 0.5, 100.0])
def test_m2po_leaves_out_the_same_tokens(seed: int, threshold: float) -> None:
    log_weights = np.random.default_rng(seed).normal(scale=0.4, size=20)
    found = SecondMoment(threshold).keep(torch.tensor(log_weights)).tolist()
    assert found == kept_by_m2po(log_weights.tolist(), threshold)


# where we differ by choice


def test_areals_default_deviation_is_unbiased_and_padded_which_is_one_factor_for_a_batch() -> None:
    samples = random_samples(0)
    theirs = np.array(flat(advantages(changed(adv_norm=Norm()), samples)))
    factors = np.array(flat(ours(areal(), samples))) / theirs
    count = len(factors)
    assert factors == pytest.approx(factors.mean(), rel=1e-5)
    assert factors.mean() == pytest.approx((count / (count - 1)) ** 0.5, rel=1e-5)


def test_the_deviation_of_a_batch_of_groups_is_ours_of_rewards_and_areals_of_centred_ones() -> None:
    samples = [[Sample(r, [-1.0], [-1.0]) for r in group] for group in ([9.0, 10.0], [0.0, 1.0])]
    centred = Actor(reward_norm=Norm("group", "batch", std_unbiased=False, eps=0.0))
    assert flat(advantages(centred, samples)) == pytest.approx([-1.0, 1.0, -1.0, 1.0])
    spread = np.std([9.0, 10.0, 0.0, 1.0])
    assert flat(ours(litepo(), samples)) == pytest.approx(np.array([-1, 1, -1, 1]) * 0.5 / spread)


def test_an_unbiased_deviation_of_groups_can_be_composed() -> None:
    samples = random_samples(1)
    theirs = advantages(Actor(reward_norm=Norm("group", "group", eps=0.0)), samples)
    unbiased = Algorithm(
        GroupRelative(discount=1.0, std=GroupStd(unbiased=True)),
        Surrogate(Clip(0.2, 0.2), NoWeight()),
    )
    assert flat(ours(unbiased, samples)) == pytest.approx(flat(theirs), rel=1e-6, abs=1e-6)


def test_the_approximated_centre_is_areals_at_the_end_of_a_step_and_exact_at_its_start() -> None:
    rng = np.random.default_rng(0)
    b, q = -np.abs(rng.normal(2.0, 0.5, (2, 6)))
    lags = [0, 0, 1, 2, 5, 16]
    tensors = [torch.tensor(values, dtype=torch.float64) for values in (b, q, lags)]
    at_the_end = interpolate(*tensors, progress=1.0)
    theirs = loglinear_proximal(b, q, [lag + 1 for lag in lags])
    assert at_the_end.tolist() == pytest.approx(theirs, rel=1e-12)
    assert interpolate(*tensors, progress=0.0).tolist() == q.tolist()
