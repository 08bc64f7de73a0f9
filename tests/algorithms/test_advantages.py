"""Advantages, against numbers worked out by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_sdk.algorithms.advantages import GroupRelative, RunningBaseline
from areal_sdk.types import Trajectory, TrajectoryGroup

from .trajectories import group, trajectory


def siblings(*rewards: float) -> TrajectoryGroup:
    return group(
        *(trajectory([1, 2, 3], [2], reward=r, episode=str(i)) for i, r in enumerate(rewards))
    )


def last(group: TrajectoryGroup, **options: bool) -> list[float]:
    """The advantage of each trajectory's last token."""
    [advantages], _ = GroupRelative(**options)([group], {})
    return [float(values[-1]) for values in advantages]


def test_rewards_are_centred_and_scaled_within_the_group() -> None:
    # mean 0.25, std sqrt(3)/4
    high, low = 0.75 / (math.sqrt(3) / 4), -0.25 / (math.sqrt(3) / 4)
    assert last(siblings(1, 0, 0, 0)) == pytest.approx([high, low, low, low])
    assert last(siblings(1, 0, 0, 0), divide_by_std=False) == pytest.approx([0.75, *[-0.25] * 3])


def test_only_trained_tokens_have_an_advantage() -> None:
    [[first, _]], _ = GroupRelative()([siblings(1, 0)], {})
    assert first.tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("rewards", [(1.0,), (0.5, 0.5, 0.5), (1.0, 1.0 + 1e-9)])
def test_a_group_of_one_or_of_equals_teaches_nothing(rewards: tuple[float, ...]) -> None:
    assert last(siblings(*rewards)) == [0.0] * len(rewards)


def test_an_episode_with_branches_is_one_value() -> None:
    branches = [trajectory([1, 2, i], [2], reward=1.0, episode="a") for i in range(5)]
    other = trajectory([1, 2, 9], [2], reward=0.0, episode="b")
    assert last(group(*branches, other)) == pytest.approx([1.0] * 5 + [-1.0])


def test_groups_of_unequal_size_do_not_mix() -> None:
    incomplete, whole = siblings(1, 0), siblings(0, 0, 3)
    [first, second], _ = GroupRelative()([incomplete, whole], {})
    assert [float(a[-1]) for a in first] == pytest.approx([1.0, -1.0])
    assert sum(float(a[-1]) for a in second) == pytest.approx(0.0)


def per_turn(episode: str, *rewards: float | None) -> Trajectory:
    """Two sampled tokens a turn, with a tool's token between the turns."""
    tokens, trained, turns = [0], [], []
    for turn in range(len(rewards)):
        trained += [len(tokens), len(tokens) + 1]
        turns += [turn, turn]
        tokens += [1, 1, 9]
    total = sum(r for r in rewards if r is not None)
    return trajectory(
        tokens, trained, turns=turns, turn_rewards=rewards, reward=total, episode=episode
    )


def test_turn_rewards_become_turn_advantages() -> None:
    # Returns of turn 0: 1.0 and 0.5; of turn 1: 0.5 and 0.5, which is nothing to learn from.
    [[a, b]], _ = GroupRelative()([group(per_turn("a", 0.5, 0.5), per_turn("b", 0.0, 0.5))], {})
    assert a.tolist() == [0, 1, 1, 0, 0, 0, 0]
    assert b.tolist() == [0, -1, -1, 0, 0, 0, 0]


def test_a_turn_that_no_sibling_reached_is_compared_with_nothing() -> None:
    [[a, b]], _ = GroupRelative()([group(per_turn("a", 0.0, 5.0), per_turn("b", 1.0))], {})
    assert a.tolist() == [0, 1, 1, 0, 0, 0, 0]
    assert b.tolist() == [0, -1, -1, 0]


def test_turns_after_the_last_reward_are_not_trained() -> None:
    [[a, b]], _ = GroupRelative()([group(per_turn("a", 1.0, None), per_turn("b", 0.0, None))], {})
    assert a.tolist() == [0, 1, 1, 0, 0, 0, 0]
    assert b.tolist() == [0, -1, -1, 0, 0, 0, 0]


def test_a_reward_for_the_episode_is_the_return_of_all_its_turns_among_rewards_by_turn() -> None:
    whole = trajectory(
        [1, 1, 1, 9, 1, 1], [1, 2, 4, 5], turns=[0, 0, 1, 1], reward=1.0, episode="whole"
    )
    [[a, b]], _ = GroupRelative()([group(per_turn("a", 0.0, 0.0), whole)], {})
    assert a.tolist() == [0, -1, -1, 0, -1, -1, 0]
    assert b.tolist() == [0, 1, 1, 0, 1, 1]


def test_branches_that_disagree_about_their_reward_are_refused() -> None:
    broken = group(trajectory([1, 2], [1], reward=1.0), trajectory([1, 3], [1], reward=0.0))
    with pytest.raises(ValueError, match="different rewards"):
        last(broken)


def alone(reward: float, source: str = "someone") -> TrajectoryGroup:
    return group(trajectory([1, 2], [1], reward=reward), task=source)


def test_a_lone_caller_is_compared_with_its_own_past() -> None:
    estimator = RunningBaseline()
    [[first]], baselines = estimator([alone(1.0)], {})
    assert first[-1] == 0.0
    assert baselines == {"someone": (1.0, 1.0)}
    # Two surprises of -1 and +1 against a mean of 1, root mean square 1.
    (low, high), baselines = estimator([alone(0.0), alone(1.5)], baselines)
    assert list(baselines["someone"]) == pytest.approx([2.5 / 3, 3.0])
    assert float(low[0][-1]) == pytest.approx(-1.0)
    assert float(high[0][-1]) == pytest.approx(1.0)


def test_sources_do_not_share_a_baseline() -> None:
    estimator = RunningBaseline()
    _, baselines = estimator([alone(1.0, "easy"), alone(0.0, "hard")], {})
    (easy, hard), _ = estimator([alone(1.0, "easy"), alone(1.0, "hard")], baselines)
    assert easy[0][-1] == 0.0
    assert hard[0][-1] > 0.0


def test_a_batch_of_successes_stays_good_news() -> None:
    estimator = RunningBaseline()
    _, baselines = estimator([alone(0.0)], {})
    advantages, _ = estimator([alone(1.0), alone(1.0)], baselines)
    assert all(values[0][-1] > 0 for values in advantages)


def test_estimators_keep_no_state_of_their_own() -> None:
    estimator = RunningBaseline()
    known = {"someone": (0.25, 10.0)}
    first = estimator([alone(1.0)], known)
    assert estimator([alone(1.0)], known)[1] == first[1]
    assert known == {"someone": (0.25, 10.0)}


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=8))
def test_advantages_are_bounded_and_balanced_whatever_the_rewards(rewards: list[float]) -> None:
    values = last(siblings(*rewards))
    assert sum(values) == pytest.approx(0.0, abs=1e-4)
    assert all(abs(v) <= math.sqrt(len(rewards)) + 1e-4 for v in values)
