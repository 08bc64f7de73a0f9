"""Estimators against plain float64 loops, and in the cases where they could go wrong."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_sdk.algorithms.advantages import (
    GAE,
    AdvantageEstimator,
    BatchNormalised,
    BatchStd,
    Evidence,
    GroupRelative,
    GroupStd,
    LeaveOneOut,
    Returns,
)
from areal_sdk.algorithms.advantages.returns import turn_returns
from areal_sdk.algorithms.aggregation import ConstantLength, SequenceMean, TokenMean
from areal_sdk.algorithms.algorithm import Algorithm
from areal_sdk.algorithms.needs import Needs
from areal_sdk.algorithms.objectives import (
    KL,
    Clip,
    Critic,
    ImportanceWeight,
    Loss,
    NoWeight,
    PolicyTerms,
    Proximal,
    ReferenceKL,
    SecondMoment,
    Surrogate,
)
from areal_sdk.algorithms.presets import dapo
from areal_sdk.algorithms.shaping import Overlong, RewardShaping
from areal_sdk.errors import ConfigError
from areal_sdk.rollout.trajectory import mask_older
from areal_sdk.trainer import IdleGroups
from areal_sdk.trajectory import TrajectoryGroup

from .trajectories import estimate, group, per_turn, trajectory

CLIP = Clip(0.2, 0.2)
PLAIN = Surrogate(CLIP, NoWeight())


def siblings(*rewards: float, name: str = "g") -> TrajectoryGroup:
    return group(
        *(
            trajectory([1, 2, 3], [1, 2], reward=r, episode=f"{name}{i}")
            for i, r in enumerate(rewards)
        ),
        name=name,
    )


def last(estimator: object, groups: Sequence[TrajectoryGroup]) -> list[list[float]]:
    advantages, _ = estimate(estimator, groups, {})  # type: ignore[arg-type]
    return [[float(row[-1]) for row in of_group] for of_group in advantages]


REWARDS = [[1.0, 0.0, 0.5], [3.0, -2.0, 4.0, 0.0]]
GROUPS = [siblings(*rewards, name=str(i)) for i, rewards in enumerate(REWARDS)]


def test_unbiased_divides_by_one_sibling_less() -> None:
    expected = [((np.array(r) - np.mean(r)) / np.std(r, ddof=1)).tolist() for r in REWARDS]
    found = last(GroupRelative(discount=1.0, std=GroupStd(unbiased=True)), GROUPS)
    assert [x for row in found for x in row] == pytest.approx([x for row in expected for x in row])


def test_the_batchs_deviation_is_one_scale_for_all_groups() -> None:
    std = np.std([x for rewards in REWARDS for x in rewards])
    expected = [x for r in REWARDS for x in ((np.array(r) - np.mean(r)) / std).tolist()]
    found = last(GroupRelative(discount=1.0, std=BatchStd()), GROUPS)
    assert [x for row in found for x in row] == pytest.approx(expected)


def test_leaving_oneself_out_is_the_mean_of_the_others() -> None:
    [_, found] = last(LeaveOneOut(discount=1.0), GROUPS)
    rewards = REWARDS[1]
    expected = [r - (sum(rewards) - r) / (len(rewards) - 1) for r in rewards]
    assert found == pytest.approx(expected)
    assert last(LeaveOneOut(discount=1.0), [siblings(5.0)]) == [[0.0]], "a lone survivor"


def test_batch_units_are_those_of_all_trained_tokens() -> None:
    long = trajectory([1, *[2] * 6], range(1, 7), reward=1.0, episode="long")
    short = trajectory([1, 2], [1], reward=0.0, episode="short")
    [rows], _ = estimate(BatchNormalised(Returns(discount=1.0)), [group(long, short)], {})
    values = np.array([1.0] * 6 + [0.0])
    expected = (values - values.mean()) / values.std()
    assert rows[0][1:].tolist() == pytest.approx(expected[:6].tolist())
    assert rows[1][1] == pytest.approx(expected[6])
    assert rows[0][0] == 0.0, "what is not trained has no advantage"


@pytest.mark.parametrize("groups", [[], [siblings(2.0)], [siblings(1.0, 1.0)]])
def test_batch_units_of_nothing_and_of_equals_are_zero(groups: list[TrajectoryGroup]) -> None:
    assert all(x == 0.0 for row in last(BatchNormalised(Returns(1.0)), groups) for x in row)


def test_one_scale_for_all_sources_is_what_group_units_avoid() -> None:
    large, small = siblings(1000.0, 0.0, name="a"), siblings(1.0, 0.0, name="b")
    by_batch = last(BatchNormalised(GroupRelative(1.0, std=None)), [large, small])
    assert abs(by_batch[1][0]) < 0.01 < abs(by_batch[0][0])
    assert last(GroupRelative(1.0), [large, small]) == [[1.0, -1.0], [1.0, -1.0]]


def gae(
    rewards: list[float], values: list[float], gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """GAE by its definition: a sum of discounted surprises."""
    values = [*values, 0.0]
    surprises = [r + gamma * values[t + 1] - values[t] for t, r in enumerate(rewards)]
    advantages = [
        sum((gamma * lam) ** (k - t) * surprises[k] for k in range(t, len(rewards)))
        for t in range(len(rewards))
    ]
    return advantages, [a + v for a, v in zip(advantages, values, strict=False)]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (0.9, 0.95), (1.0, 0.0), (0.99, 0.5)])
def test_gae_is_the_sum_of_discounted_surprises(gamma: float, lam: float) -> None:
    rng = np.random.default_rng(0)
    row = trajectory([0, 1, 1, 9, 1, 9, 9, 1], [1, 2, 4, 7], reward=1.5)
    values = np.zeros(8, dtype=np.float32)
    values[[1, 2, 4, 7]] = rng.normal(size=4)
    found = GAE(1.0, lam, gamma)([group(row)], Evidence(values=[[values]]))
    expected, returns = gae(
        [0.0, 0.0, 0.0, 1.5], [float(v) for v in values[[1, 2, 4, 7]]], gamma, lam
    )
    assert found.advantages[0][0][[1, 2, 4, 7]].tolist() == pytest.approx(expected, rel=1e-6)
    assert found.returns is not None
    assert found.returns[0][0][[1, 2, 4, 7]].tolist() == pytest.approx(returns, rel=1e-6)
    assert found.advantages[0][0][[0, 3, 5, 6]].tolist() == [0.0] * 4


def test_rewards_of_turns_come_with_their_last_token_and_are_discounted_by_turn() -> None:
    [[row]], _ = estimate(Returns(discount=0.5), [group(per_turn("e", 1.0, None, 4.0))], {})
    # Turn 2: 4; turn 1: 0.5 * 4; turn 0: 1 + 0.5 * 2.
    assert row.tolist() == [0, 2, 2, 0, 2, 2, 0, 4, 4, 0]


def test_an_episode_with_branches_is_one_chain() -> None:
    first = trajectory([1, 2], [1], turns=[0], reward=2.0, episode="e")
    second = trajectory([5, 6], [1], turns=[1], reward=2.0, episode="e")
    [rows], _ = estimate(Returns(discount=0.5), [group(second, first)], {})
    assert [row[1] for row in rows] == [2.0, 1.0]


def test_returns_of_turns_are_those_that_siblings_are_compared_by() -> None:
    """0 is answered twice (1, 2) and each answer is continued (3, 4): its credit is what came of both."""
    rewards = (0.5, None, 0.25, 1.0, 2.0)
    alternatives = ((), (2, 4), (3,), (4,), ())
    one, other = (
        replace(
            trajectory([1] * 6, range(1, 1 + len(turns)), turns=turns, turn_rewards=rewards),
            turn_alternatives=alternatives,
            num_turns=5,
        )
        for turns in ((0, 1, 3), (2, 4))
    )
    expected = turn_returns(one, 5, discount=0.5)
    [rows], _ = estimate(Returns(discount=0.5), [group(one, other)], {})
    assert rows[0][1:4].tolist() == [expected[0], expected[1], expected[3]]
    assert rows[1][1:3].tolist() == [expected[2], expected[4]]


@pytest.mark.parametrize(
    "estimator", [Returns(1.0), GroupRelative(1.0, std=None), LeaveOneOut(1.0)]
)
def test_turns_that_nobody_scored_are_neither_trained_nor_counted(
    estimator: AdvantageEstimator,
) -> None:
    """Turns after the last reward: a missing verdict is no zero, in units of the batch as elsewhere."""
    scored = [per_turn("a", 1.0), per_turn("b", 0.0, 0.5)]
    without = group(*scored)
    beside = group(per_turn("a", 1.0, None, None), scored[1])
    [expected], _ = estimate(BatchNormalised(estimator), [without], {})
    [found], _ = estimate(BatchNormalised(estimator), [beside], {})
    assert found[0][:4].tolist() == expected[0].tolist()
    assert found[1].tolist() == expected[1].tolist()
    assert found[0][4:].tolist() == [0.0] * 6


def test_turns_without_trained_tokens_take_time() -> None:
    row = replace(trajectory([1, 2], [1], turns=[0], reward=2.0), num_turns=3)
    [[found]], _ = estimate(Returns(discount=0.5), [group(row)], {})
    assert found[1] == 0.5


def test_the_kl_in_the_reward_is_paid_where_it_arises() -> None:
    row = trajectory([1, 2, 3], [1, 2], reward=1.0, logprob=-1.0)
    reference = np.array([0.0, -1.5, -1.0], dtype=np.float32)
    found = Returns(discount=1.0, kl=0.1)([group(row)], Evidence(reference=[[reference]]))
    # The first token is 0.5 likelier than under the reference: it loses 0.05, the second nothing.
    assert found.advantages[0][0].tolist() == pytest.approx([0.0, 0.95, 1.0])


def test_shaping_shifts_scales_and_bounds() -> None:
    shaping = RewardShaping(scale=10.0, bias=-0.5, clip=4.0)
    [shaped] = shaping([siblings(1.0, 0.2)])
    assert [t.reward for t in shaped.trajectories] == [4.0, -3.0]


def test_what_is_shaped_of_rewarded_turns_is_their_return() -> None:
    shaping = RewardShaping(scale=10.0, bias=-0.5, clip=4.0)
    [turns] = shaping([group(per_turn("e", 0.5, None, 0.6))])
    assert turns.trajectories[0].turn_rewards[1] is None
    assert turn_returns(turns.trajectories[0]) == pytest.approx([4.0, 1.0, 1.0])  # of 1.1 and 0.6


@pytest.mark.parametrize("num_turns", [1, 3, 8])
def test_an_episode_of_many_turns_has_the_bias_once(num_turns: int) -> None:
    shaping = RewardShaping(scale=10.0, bias=-0.5)
    rewards = [*[0.0] * (num_turns - 1), 1.0]
    [shaped] = shaping([group(per_turn("e", *rewards))])
    assert turn_returns(shaped.trajectories[0]) == pytest.approx([5.0] * num_turns)


@settings(max_examples=200)
@given(
    st.lists(st.none() | st.floats(-2, 2), min_size=4, max_size=4),
    st.sampled_from(
        [
            (),
            ((), (2, 3), (), ()),  # two answers after the first turn; the second goes on
            ((1, 2, 3), (), (), ()),
            ((), (2,), (3,), ()),  # the first answer goes on
        ]
    ),
    st.sampled_from([None, 1.0]),
)
def test_shaped_returns_are_shaped_sums_also_where_turns_are_alternatives(
    rewards: list[float | None], others: tuple[tuple[int, ...], ...], clip: float | None
) -> None:
    row = replace(per_turn("e", *rewards), turn_alternatives=others)
    [shaped] = RewardShaping(scale=2.0, bias=-0.5, clip=clip)([group(row)])
    given_returns = turn_returns(row)
    for before, after in zip(given_returns, turn_returns(shaped.trajectories[0]), strict=True):
        assert (before is None) == (after is None)
        if before is not None and after is not None:
            expected = (before - 0.5) * 2.0
            if clip is not None:
                expected = min(max(expected, -clip), clip)
            assert after == pytest.approx(expected, abs=1e-9)


def test_a_turn_that_nothing_scored_has_no_reward_after_shaping_either() -> None:
    """Turns 1 and 3 are two answers after turn 0; turn 2 follows turn 1. The scored ones are 2 and 3."""
    row = replace(per_turn("e", None, None, 0.25, 1.0), turn_alternatives=((), (3,), (3,), ()))
    [shaped] = RewardShaping(scale=2.0, bias=-0.5)([group(row)])
    first, *others = shaped.trajectories[0].turn_rewards
    assert others == [None, -0.5, 1.0]
    assert first == 1.0, "2 * (1.25 - 0.5) in all, and 0.5 of it comes with its consequences"
    [again] = RewardShaping(scale=1.0, clip=9.0)([group(replace(row, turn_rewards=(None,) * 4))])
    assert again.trajectories[0].turn_rewards == (None,) * 4


def test_a_long_answer_loses_gradually_and_once() -> None:
    shaping = RewardShaping(overlong=Overlong(limit=4, margin=2, penalty=1.0))
    rows = [
        trajectory([0] + [1] * n, range(1, n + 1), reward=1.0, episode=str(n)) for n in (2, 3, 9)
    ]
    [shaped] = shaping([group(*rows)])
    assert [t.reward for t in shaped.trajectories] == [1.0, 0.5, 0.0]
    [turns] = shaping([group(per_turn("e", 1.0, 1.0, None))])  # six tokens
    assert turns.trajectories[0].turn_rewards == (1.0, 0.0, None)


def test_a_long_answer_pays_for_tokens_that_are_not_trained_too() -> None:
    """Old tokens and those of a truncated answer may be masked: the answer is as long as it was."""
    soft = RewardShaping(overlong=Overlong(limit=4, margin=2, penalty=1.0))
    whole = replace(trajectory([0] + [1] * 9, range(1, 10), reward=1.0), num_sampled=9)
    [shaped] = soft(
        [group(mask_older(replace(whole, versions=np.array([-1, *[0] * 8, 1])), than=1))]
    )
    assert shaped.trajectories[0].num_trained == 1
    assert shaped.trajectories[0].reward == 0.0


def test_a_soft_limit_leaves_solved_groups_to_dynamic_sampling() -> None:
    assert dapo(overlong_limit=100).idle_groups is dapo().idle_groups is IdleGroups.EQUAL_REWARDS


@pytest.mark.parametrize("lengths", [[3], [1, 2, 7], [5] * 4])
def test_the_shares_of_all_terms_are_one_average(lengths: list[int]) -> None:
    for aggregation in (TokenMean(), SequenceMean()):
        shares = aggregation(lengths)
        total = sum(w * n for w, n in zip(shares.weights, lengths, strict=True)) / shares.divisor
        assert total == pytest.approx(1.0)
    shares = ConstantLength(10)(lengths)
    assert (set(shares.weights), shares.divisor) == ({1.0}, 10.0 * len(lengths))


def test_huge_rewards_stay_numbers() -> None:
    huge = [siblings(1.7e308, -1.7e308)]
    for estimator in (LeaveOneOut(1.0), GroupRelative(1.0, std=None), Returns(1.0)):
        assert all(math.isfinite(x) for row in last(estimator, huge) for x in row)


class Blind:
    """Wants to look at a minibatch, and does not say what for."""

    needs = Needs(minibatch=True)

    def __call__(self, terms: PolicyTerms) -> Loss:
        return Loss(terms.current_T)


class ReadsValues:
    needs = Needs(values=True)

    def __call__(self, terms: PolicyTerms) -> Loss:
        return Loss(terms.current_T)


@pytest.mark.parametrize(
    ("parts", "cure"),
    [
        ({"advantages": GAE(1.0, 1.0)}, "give a Critic"),
        ({"critic": Critic(1e-4)}, "no part reads the values of the critic"),
        (
            {"critic": Critic(1e-4), "objective": ReadsValues()},
            r"GroupRelative has no returns for the critic to learn: take GAE, or return "
            r"Estimate\(returns=...\)",
        ),
        (
            {
                "proximal": Proximal.BEHAVIOUR,
                "objective": Surrogate(Clip(0.2, 0.2), ImportanceWeight(5.0)),
            },
            r"give NoWeight\(\)",
        ),
        (
            {
                "proximal": Proximal.BEHAVIOUR,
                "objective": Surrogate(Clip(0.2, 0.2), NoWeight(), screen=SecondMoment(0.04)),
            },
            "a screen of log-weights keeps everything",
        ),
        ({"objective": Blind()}, "declares needs.minibatch, but has no `keep`"),
        (
            {"objective": Surrogate(CLIP, NoWeight(), penalties=(ReferenceKL(0.1, KL.K1),))},
            "choose k2 or k3",
        ),
    ],
)
def test_parts_that_do_not_go_together_are_refused(parts: dict[str, object], cure: str) -> None:
    with pytest.raises(ConfigError, match=cure):
        Algorithm(**{"advantages": GroupRelative(1.0), "objective": PLAIN, **parts})  # type: ignore[arg-type]
