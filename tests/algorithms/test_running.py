"""Baselines of callers that come alone, against numbers worked out by hand."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from areal_sdk.algorithms.advantages import (
    Baselines,
    Estimate,
    Evidence,
    GroupRelative,
    NamesOutliers,
    learns_alone,
)
from areal_sdk.algorithms.advantages.running import NAMES_FROM, TURNS, RunningBaseline, Usual
from areal_sdk.algorithms.presets import grpo, running_baseline
from areal_sdk.trajectory import TrajectoryGroup

from .trajectories import estimate, group, per_turn, trajectory

BOUND = 5.0
NORMAL = 1.4826


def running(**options: Any) -> RunningBaseline:
    return RunningBaseline(**{"discount": 1.0, "max_surprise": BOUND, **options})


def alone(reward: float, source: str = "someone") -> TrajectoryGroup:
    return group(trajectory([1, 2], [1], reward=reward, task=source), task=source)


def by_turn(*rewards: float | None, source: str = "someone") -> TrajectoryGroup:
    return group(per_turn("e", *rewards, task=source), task=source)


def judge(
    groups: Sequence[TrajectoryGroup], past: dict[str, list[list[float]]], **options: Any
) -> list[float]:
    """The advantage of the last trained token of each group."""
    advantages, _ = estimate(running(**options), groups, past)
    last = [max(i for i, m in enumerate(g.trajectories[0].loss_mask) if m) for g in groups]
    return [float(rows[0][i]) for rows, i in zip(advantages, last, strict=True)]


def test_a_lone_caller_is_compared_with_its_own_past() -> None:
    estimator = running()
    [[first]], baselines = estimate(estimator, [alone(1.0)], {})
    assert first[-1] == 0.0
    assert baselines == {"someone": [[1.0]]}
    # 1 below the mean of 1; the spread of (1, 0) around 1 is the root of (0 + 1) / 2.
    (low, high), baselines = estimate(estimator, [alone(0.0), alone(1.5)], baselines)
    assert baselines == {"someone": [[1.0], [0.0], [1.5]]}
    assert float(low[0][-1]) == pytest.approx(-math.sqrt(2))
    # 1 above the mean of 0.5; the root of (0.25 + 0.25 + 1) / 3.
    assert float(high[0][-1]) == pytest.approx(1 / math.sqrt(0.5))


def test_tasks_that_never_repeat_are_compared_with_those_of_their_source() -> None:
    """A generator names every task anew. Of each source: 0, then 1 above a mean of 0, and its spread."""
    groups = [
        group(trajectory([1, 2], [1], reward=reward), task=str(number), source=source)
        for number, (source, reward) in enumerate(
            [("sums", 0.0), ("words", 0.0), ("sums", 1.0), ("words", 1000.0)]
        )
    ]
    assert judge(groups, {}) == pytest.approx([0.0, 0.0, math.sqrt(2), math.sqrt(2)])
    assert estimate(running(), groups, {})[1].keys() == {"sums", "words"}


def test_the_spread_is_that_of_the_source() -> None:
    past = {"small": [[0.0], [1.0]] * 8, "large": [[0.0], [1000.0]] * 8}
    small, large = judge([alone(1.0, "small"), alone(1000.0, "large")], past)
    assert small == pytest.approx(large) == pytest.approx(0.5 / math.sqrt(17 * 0.25 / 17))


def test_sources_do_not_share_a_baseline() -> None:
    _, baselines = estimate(running(), [alone(1.0, "easy"), alone(0.0, "hard")], {})
    easy, hard = judge([alone(1.0, "easy"), alone(1.0, "hard")], dict(baselines))
    assert easy == 0.0
    assert hard > 0.0


def test_a_wrong_reward_changes_nothing_for_another_source() -> None:
    past = {"alice": [[0.0], [1.0]] * 4, "bob": [[0.0], [1.0]] * 4}
    right = judge([alone(1.0, "bob"), alone(1.0, "alice")], past)
    wrong = judge([alone(1e6, "bob"), alone(1.0, "alice")], past)
    assert wrong[1] == right[1]
    assert 0.0 < wrong[0] <= BOUND


def test_a_wrong_reward_moves_its_own_source_a_little_and_for_a_while() -> None:
    estimator = running()
    past = {"bob": [[0.0], [1.0]] * 8}
    before = judge([alone(1.0, "bob")], past)
    _, after = estimate(estimator, [alone(1e6, "bob")], past)
    # Median 1, deviations 1 where they are not 0: 1,000,000 counts as 1 + 5 * 1.4826 = 8.413.
    assert Usual.of([e[0] for e in after["bob"]], bound=BOUND).mean == pytest.approx(16.413 / 17)
    (moved,) = judge([alone(1.0, "bob")], dict(after))
    (bad,) = judge([alone(0.0, "bob")], dict(after))
    assert bad < 0.0 < moved < before[0]
    for reward in [0.0, 1.0] * 16:
        _, after = estimate(estimator, [alone(reward, "bob")], after)
    fresh = {"bob": [[0.0], [1.0]] * 16}
    assert judge([alone(1.0, "bob")], dict(after)) == judge([alone(1.0, "bob")], fresh)


def test_the_first_success_after_many_failures_counts_and_is_bounded() -> None:
    past = {"someone": [[0.0]] * 32}
    assert judge([alone(1.0)], past) == [5.0], "of the root of 33, with algorithm.max_surprise 5"
    assert judge([alone(1.0)], past, max_surprise=10.0) == pytest.approx([math.sqrt(33)])
    assert judge([alone(1e-9)], past) == [0.0], "equal, but for rounding"


def test_a_batch_of_successes_stays_good_news() -> None:
    assert all(a > 0 for a in judge([alone(1.0), alone(1.0)], {"someone": [[0.0]]}))


def test_estimators_keep_no_state_of_their_own() -> None:
    estimator = running()
    known = {"someone": [[0.25], [0.5, 1.0]]}
    first = estimate(estimator, [alone(1.0)], known)
    assert estimate(estimator, [alone(1.0)], known)[1] == first[1]
    assert known == {"someone": [[0.25], [0.5, 1.0]]}


def test_siblings_are_judged_before_any_of_them_moves_the_baseline() -> None:
    pair = group(*(trajectory([1, 2], [1], reward=r, episode=str(r), task="t") for r in (1.0, 0.0)))
    [[a, b]], baselines = estimate(running(), [pair], {"t": [[0.5]]})
    assert float(a[-1]) == -float(b[-1]) == pytest.approx(math.sqrt(2))
    assert baselines == {"t": [[0.5], [1.0], [0.0]]}


def test_a_rewarded_turn_is_compared_with_the_same_turn_before() -> None:
    [[row]], baselines = estimate(running(), [by_turn(0.0, 1.0)], {"someone": [[1.0, 0.0]]})
    # Turn 0: a return of 1 as before. Turn 1: 1 where 0 was.
    assert row.tolist() == pytest.approx([0, 0, 0, 0, math.sqrt(2), math.sqrt(2), 0])
    assert baselines == {"someone": [[1.0, 0.0], [1.0, 1.0]]}


def test_a_turn_that_no_episode_reached_is_compared_with_where_they_ended() -> None:
    [[row]], _ = estimate(running(), [by_turn(0.0, 0.0, 1.0)], {"someone": [[0.0], [0.0]]})
    assert row[[1, 4, 7]].tolist() == pytest.approx([math.sqrt(3)] * 3)


def test_turns_and_verdicts_are_compared_with_one_another() -> None:
    estimator = running()
    [[row]], _ = estimate(estimator, [by_turn(0.0, 1.0)], {"someone": [[1.0]]})
    assert row.tolist() == [0.0] * 7
    whole = trajectory([1, 1, 1], [1, 2], turns=[0, 1], reward=1.0)
    [[row]], _ = estimate(estimator, [group(whole, task="someone")], {"someone": [[0.0, 0.0]]})
    assert row.tolist() == pytest.approx([0, math.sqrt(2), math.sqrt(2)])


def test_turns_that_nobody_rewarded_are_neither_trained_nor_compared() -> None:
    [[row]], baselines = estimate(running(), [by_turn(1.0, None)], {"someone": [[0.0, 0.0]]})
    assert row.tolist() == pytest.approx([0, math.sqrt(2), math.sqrt(2), 0, 0, 0, 0])
    assert baselines["someone"][-1] == [1.0, None]
    assert judge([by_turn(None, None)], {"someone": [[0.0]]}) == [0.0]


def test_a_discount_lets_distant_rewards_count_less() -> None:
    _, baselines = estimate(running(discount=0.5), [by_turn(1.0, 2.0), alone(1.0)], {})
    assert baselines == {"someone": [[2.0, 2.0], [1.0]]}


def test_what_is_remembered_is_bounded() -> None:
    estimator = running()
    _, baselines = estimate(estimator, [by_turn(*[1.0] * (TURNS + 9))] * 40, {})
    assert len(baselines["someone"]) == estimator.memory
    assert {len(episode) for episode in baselines["someone"]} == {TURNS}
    [[row]], _ = estimate(estimator, [by_turn(*[2.0] * (TURNS + 9))], baselines)
    assert row[-2] < 0.0 < row[1], "late turns are compared with the last one remembered"


def test_no_groups_and_no_episodes_change_nothing() -> None:
    estimator = running()
    assert estimate(estimator, [], {"a": [[1.0]]}) == ([], {"a": [[1.0]]})
    assert estimate(estimator, [group(task="a")], {"a": [[1.0]]}) == ([[]], {"a": [[1.0]]})


def test_baselines_of_old_checkpoints_are_read() -> None:
    [[row]], baselines = estimate(running(), [alone(1.5)], {"someone": (0.5, 40.0)})
    assert float(row[-1]) == pytest.approx(math.sqrt(2))
    assert baselines == {"someone": [[0.5], [1.5]]}


def test_who_posted_a_wrong_reward_is_named() -> None:
    estimator = running()
    assert isinstance(estimator, NamesOutliers)
    past = {"alice": [[0.0], [1.0]] * 8, "bob": [[0.0], [1.0]] * 8}
    groups = [alone(1e6, "bob"), alone(1.0, "alice")]
    assert estimator.outliers(groups, past) == {
        "bob": "a reward of 1e+06 is far from the 0.5 of the 16 before it, right or wrong: it counts as 5 "
        "spreads at most (algorithm.running_baseline.max_surprise)"
    }
    assert past["bob"] == [[0.0], [1.0]] * 8, "asking changes nothing"


def test_a_wrong_reward_in_the_batch_of_its_first_ones_is_named() -> None:
    groups = [alone(reward, "bob") for reward in (*[0.0, 1.0] * 8, 1e6, 0.0)]
    assert set(running().outliers(groups, {})) == {"bob"}


def test_a_few_rewards_are_no_usual_ones() -> None:
    groups = [alone(reward) for reward in (0.4, 0.5, 0.45, 1.0)]
    assert not running().outliers(groups, {})
    assert not running().outliers([alone(1e6)], {"someone": [[0.0], [1.0]] * 7})


def test_ordinary_rewards_seldom_name_their_source() -> None:
    rewards = np.random.default_rng(0).normal(size=(300, NAMES_FROM + 1))
    named = [
        bool(running().outliers([alone(last)], {"someone": [[r] for r in before]}))
        for *before, last in rewards.tolist()
    ]
    assert sum(named) < 9


def test_a_source_whose_rewards_were_equal_has_the_bounds_of_the_others() -> None:
    past = {"alice": [[0.0], [1.0]] * 8, "bob": [[0.0]] * 16}
    named = running().outliers
    assert not named([alone(1.0, "bob"), alone(1.0, "alice")], past), "a first success is none"
    assert set(named([alone(1e6, "bob"), alone(1.0, "alice")], past)) == {"bob"}
    assert not named([alone(1.0, "bob")], past), "nothing says what is far"


def test_a_source_of_another_scale_is_not_named() -> None:
    past = {"alice": [[0.0], [1.0]] * 8, "bob": [[-500.0], [500.0]] * 8}
    assert not running().outliers([alone(900.0, "bob"), alone(1.0, "alice")], past)


@given(st.lists(st.floats(-1.7e308, 1.7e308), min_size=1, max_size=12))
def test_advantages_are_bounded_whatever_the_rewards(rewards: list[float]) -> None:
    baselines: Baselines = {}
    for reward in rewards:
        estimator = running()
        [[row]], baselines = estimate(estimator, [alone(reward)], baselines)
        assert abs(row[-1]) <= BOUND, "which NaN is not"


def test_presets_take_discount_and_bound_from_the_settings() -> None:
    assert grpo(discount=0.5).advantages == GroupRelative(discount=0.5)
    estimator = running_baseline(discount=0.5, max_surprise=3.0).advantages
    assert estimator == RunningBaseline(discount=0.5, max_surprise=3.0)


@dataclass(frozen=True)
class ByTask(RunningBaseline):
    """A baseline for each task id, which helps where tasks come again."""

    def __call__(self, groups: Sequence[TrajectoryGroup], evidence: Evidence) -> Estimate:
        return super().__call__([replace(g, source=g.task_id) for g in groups], evidence)


def test_a_baseline_for_each_task_does_not_learn_from_tasks_that_come_once() -> None:
    assert learns_alone(running())
    assert not learns_alone(ByTask(discount=1.0, max_surprise=BOUND))
