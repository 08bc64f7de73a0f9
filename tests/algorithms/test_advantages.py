"""Advantages, against numbers worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_sdk.algorithms.advantages import GroupRelative, credit_of_episodes
from areal_sdk.trajectory import Credit, Trajectory, TrajectoryGroup

from .trajectories import estimate, group, per_turn, trajectory


def siblings(*rewards: float) -> TrajectoryGroup:
    return group(
        *(trajectory([1, 2, 3], [2], reward=r, episode=str(i)) for i, r in enumerate(rewards))
    )


def last(group: TrajectoryGroup, **options: Any) -> list[float]:
    """The advantage of each trajectory's last token."""
    [advantages], _ = estimate(GroupRelative(**{"discount": 1.0, **options}), [group], {})
    return [float(values[-1]) for values in advantages]


def test_rewards_are_centred_and_scaled_within_the_group() -> None:
    # mean 0.25, std sqrt(3)/4
    high, low = 0.75 / (math.sqrt(3) / 4), -0.25 / (math.sqrt(3) / 4)
    assert last(siblings(1, 0, 0, 0)) == pytest.approx([high, low, low, low])
    assert last(siblings(1, 0, 0, 0), std=None) == pytest.approx([0.75, *[-0.25] * 3])


def test_only_trained_tokens_have_an_advantage() -> None:
    [[first, _]], _ = estimate(GroupRelative(discount=1.0), [siblings(1, 0)], {})
    assert first.tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("rewards", [(1.0,), (0.5, 0.5, 0.5), (1.0, 1.0 + 1e-9)])
def test_a_group_of_one_or_of_equals_teaches_nothing(rewards: tuple[float, ...]) -> None:
    assert last(siblings(*rewards)) == [0.0] * len(rewards)


def test_an_episode_with_branches_is_one_value() -> None:
    branches = [trajectory([1, 2, i], [2], reward=1.0, episode="a") for i in range(5)]
    other = trajectory([1, 2, 9], [2], reward=0.0, episode="b")
    assert last(group(*branches, other)) == pytest.approx([1.0] * 5 + [-1.0])


def test_the_credit_of_an_episode_is_the_mean_of_its_trained_tokens_over_its_branches() -> None:
    first = trajectory([1, 2, 3, 4], [1, 2, 3], turns=[0, 0, 2], episode="a")
    branch = trajectory([1, 5], [1], turns=[2], episode="a")
    masked = trajectory([1, 2], [], episode="b")
    advantages = [[np.array([9.0, 1.0, 2.0, 4.0]), np.array([9.0, 5.0]), np.array([9.0, 9.0])]]
    credit = credit_of_episodes([group(first, branch, masked)], advantages)
    assert credit == {"a": Credit(3.0, (1.5, None, 4.5)), "b": Credit(None, ())}


def test_groups_of_unequal_size_do_not_mix() -> None:
    incomplete, whole = siblings(1, 0), siblings(0, 0, 3)
    [first, second], _ = estimate(GroupRelative(discount=1.0), [incomplete, whole], {})
    assert [float(a[-1]) for a in first] == pytest.approx([1.0, -1.0])
    assert sum(float(a[-1]) for a in second) == pytest.approx(0.0)


def test_turn_rewards_become_turn_advantages() -> None:
    # Returns of turn 0: 1.0 and 0.5; of turn 1: 0.5 and 0.5, which is nothing to learn from.
    [[a, b]], _ = estimate(
        GroupRelative(discount=1.0), [group(per_turn("a", 0.5, 0.5), per_turn("b", 0.0, 0.5))], {}
    )
    assert a.tolist() == [0, 1, 1, 0, 0, 0, 0]
    assert b.tolist() == [0, -1, -1, 0, 0, 0, 0]


def by_turn(group: TrajectoryGroup, **options: Any) -> list[list[float]]:
    """The advantage of each turn of each trajectory."""
    [advantages], _ = estimate(GroupRelative(**{"discount": 1.0, **options}), [group], {})
    return [
        [float(row[t.turn_of_token == turn][0]) for turn in range(max(t.turn_of_token) + 1)]
        for t, row in zip(group.trajectories, advantages, strict=True)
    ]


def test_a_turn_that_no_sibling_reached_is_compared_with_where_they_ended() -> None:
    [a, b] = by_turn(group(per_turn("a", 0.0, 5.0), per_turn("b", 1.0)))
    assert a == [1.0, 1.0]
    assert b == [-1.0]


def test_the_turn_that_solved_it_is_trained_although_all_siblings_had_given_up() -> None:
    gave_up = [per_turn(name, 0.0) for name in "bcd"]
    [a, *others] = by_turn(group(per_turn("a", 0.0, 0.0, 1.0), *gave_up))
    assert a == pytest.approx(
        [math.sqrt(3)] * 3
    )  # 0.75 above the mean, standard deviation sqrt(3)/4
    assert others == [pytest.approx([-1 / math.sqrt(3)])] * 3


def test_two_that_solved_it_are_compared_with_those_that_gave_up() -> None:
    solved = [per_turn(name, 0.0, 1.0) for name in "ab"]
    assert by_turn(group(*solved, per_turn("c", 0.0), per_turn("d", 0.0)))[:2] == [[1.0, 1.0]] * 2


def test_a_late_turn_is_compared_with_what_ended_siblings_earned_last() -> None:
    # Turn 1: b counts with 0.5, its last turn's return, and not with the 1.5 of all its turns.
    group_ = group(per_turn("a", 0.0, 0.0, 0.8), per_turn("b", 1.0, 0.5))
    [a, b] = by_turn(group_, std=None)
    assert a == pytest.approx([(0.8 - 1.5) / 2, (0.8 - 0.5) / 2, (0.8 - 0.5) / 2])
    assert b == pytest.approx([(1.5 - 0.8) / 2, (0.5 - 0.8) / 2])


def test_solving_later_than_the_others_is_neither_better_nor_worse() -> None:
    solved = (per_turn("a", 1.0), per_turn("b", 0.0, 1.0), per_turn("c", 0.0, 0.0, 1.0))
    assert by_turn(group(*solved)) == [[0.0], [0.0, 0.0], [0.0, 0.0, 0.0]]


def test_equal_rewards_of_all_turns_favour_the_longer_episode_as_their_sum_does() -> None:
    # Returns 3, 2, 1 against 1, 1, 1: the turn that earns as much as the sibling's last is no better.
    [a, b] = by_turn(group(per_turn("a", 1.0, 1.0, 1.0), per_turn("b", 1.0)))
    assert (a, b) == ([1.0, 1.0, 0.0], [-1.0])
    [a, b] = by_turn(group(per_turn("a", -1.0, -1.0, -1.0), per_turn("b", -1.0)))
    assert (a, b) == ([-1.0, -1.0, 0.0], [1.0])
    [a, b] = by_turn(group(per_turn("a", 0.0, 0.0, 0.0), per_turn("b", 0.0)))
    assert (a, b) == ([0.0, 0.0, 0.0], [0.0])


def test_siblings_that_earned_the_same_in_every_turn_teach_nothing() -> None:
    same = [per_turn(name, 0.25, None, 1.0) for name in "abc"]
    assert by_turn(group(*same)) == [[0.0] * 3] * 3


def test_a_sibling_that_nobody_rewarded_is_not_a_zero() -> None:
    unknown = per_turn("b", None, None)
    assert by_turn(group(per_turn("a", 0.0, 5.0), unknown)) == [[0.0, 0.0], [0.0, 0.0]]


def test_one_episode_alone_and_no_episode_teach_nothing() -> None:
    assert by_turn(group(per_turn("a", 0.0, 1.0))) == [[0.0, 0.0]]
    assert estimate(GroupRelative(discount=1.0), [group()], {}) == ([[]], {})
    assert estimate(GroupRelative(discount=0.5), [group()], {}) == ([[]], {})


def test_a_discount_lets_distant_rewards_count_less() -> None:
    # Returns of a: 1 + 0.5 * 2 = 2, then 2; of b: 2 + 0.5 * 0 = 2, then 0.
    group_ = group(per_turn("a", 1.0, 2.0), per_turn("b", 2.0, 0.0))
    assert by_turn(group_, discount=0.5) == [[0.0, 1.0], [0.0, -1.0]]


def test_a_reward_for_the_episode_is_discounted_from_its_end() -> None:
    def rewarded(name: str, reward: float) -> Trajectory:
        return trajectory([1, 1, 1], [1, 2], turns=[0, 1], reward=reward, episode=name)

    group_ = group(rewarded("a", 1.0), rewarded("b", 0.0))
    advantages = by_turn(group_, std=None, discount=0.5)
    assert advantages == [[0.25, 0.5], [-0.25, -0.5]]


def test_huge_rewards_stay_numbers() -> None:
    assert last(siblings(1.7e308, -1.7e308)) == [1.0, -1.0]
    assert last(siblings(1.7e308, 1.7e308)) == [0.0, 0.0]
    [a, b] = by_turn(group(per_turn("a", 1.7e308, 1.7e308), per_turn("b", -1.7e308)))
    assert (a, b) == ([1.0, 1.0], [-1.0])


def test_rewards_of_episodes_give_bit_by_bit_the_textbook_numbers() -> None:
    rewards = np.random.default_rng(0).normal(size=8)
    expected = ((rewards - rewards.mean()) / rewards.std()).astype(np.float32)
    assert last(siblings(*rewards.tolist())) == expected.tolist()


def test_turns_after_the_last_reward_are_not_trained() -> None:
    [[a, b]], _ = estimate(
        GroupRelative(discount=1.0), [group(per_turn("a", 1.0, None), per_turn("b", 0.0, None))], {}
    )
    assert a.tolist() == [0, 1, 1, 0, 0, 0, 0]
    assert b.tolist() == [0, -1, -1, 0, 0, 0, 0]


def test_a_reward_for_the_episode_is_the_return_of_all_its_turns_among_rewards_by_turn() -> None:
    whole = trajectory(
        [1, 1, 1, 9, 1, 1], [1, 2, 4, 5], turns=[0, 0, 1, 1], reward=1.0, episode="whole"
    )
    [[a, b]], _ = estimate(GroupRelative(discount=1.0), [group(per_turn("a", 0.0, 0.0), whole)], {})
    assert a.tolist() == [0, -1, -1, 0, -1, -1, 0]
    assert b.tolist() == [0, 1, 1, 0, 1, 1]


def test_branches_that_disagree_about_their_reward_are_refused() -> None:
    broken = group(trajectory([1, 2], [1], reward=1.0), trajectory([1, 3], [1], reward=0.0))
    with pytest.raises(ValueError, match="different rewards"):
        last(broken)


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=8))
def test_advantages_are_bounded_and_balanced_whatever_the_rewards(rewards: list[float]) -> None:
    values = last(siblings(*rewards))
    assert sum(values) == pytest.approx(0.0, abs=1e-4)
    assert all(abs(v) <= math.sqrt(len(rewards)) + 1e-4 for v in values)
