"""The share of the groups whose rewards differ."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from areal_sdk.fsdp.step.metrics import spread
from areal_sdk.trajectory import TrajectoryGroup

from .episodes import make_groups


def rewarded(rewards: Sequence[Sequence[float]]) -> list[TrajectoryGroup]:
    """Groups of one source, by the rewards of their episodes."""
    (made,) = make_groups(1, 1)
    return [
        TrajectoryGroup(
            str(number),
            str(number),
            tuple(
                replace(made.trajectories[0], episode_id=f"{number}/{sibling}", reward=reward)
                for sibling, reward in enumerate(of_group)
            ),
            "source",
        )
        for number, of_group in enumerate(rewards)
    ]


def test_it_is_the_share_of_the_groups_whose_rewards_differ() -> None:
    assert spread(rewarded([(0.0, 1.0), (1.0, 1.0), (0.0, 0.0), (0.5, 0.5)])) == 0.25


def test_branches_of_an_episode_are_no_siblings_and_turns_may_differ() -> None:
    (group,) = rewarded([(1.0, 1.0)])
    one, other = group.trajectories
    turned = replace(other, turn_rewards=(1.0, 0.0))
    assert spread([replace(group, trajectories=(one, one, other))]) == 0.0
    assert spread([replace(group, trajectories=(one, turned))]) == 1.0


@pytest.mark.parametrize("success", [0.0, 0.02, 0.5, 1.0])
def test_episodes_alone_differ_as_often_as_groups_of_eight(success: float) -> None:
    rewards = (np.random.default_rng(0).random((500, 8)) < success).astype(float)
    alone = spread(rewarded([(reward,) for reward in rewards.flatten().tolist()]))
    assert alone == pytest.approx(spread(rewarded(rewards.tolist())), abs=0.03)


def test_episodes_alone_are_compared_within_their_source() -> None:
    easy, hard = rewarded([(1.0,)] * 8), rewarded([(0.0,)] * 8)
    assert spread(easy + hard) > 0.9
    assert spread(easy + [replace(group, source="hard") for group in hard]) == 0.0
