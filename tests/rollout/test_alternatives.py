"""Turns that answered one prompt: what came of one is no consequence of the other."""

from dataclasses import replace

import pytest

from areal_sdk.algorithms.advantages import Evidence, GroupRelative
from areal_sdk.algorithms.advantages.returns import turn_returns
from areal_sdk.fsdp.group_wire import decode_groups, encode_groups
from areal_sdk.rollout.groups import FinishedGroup, ScoredEpisode, triage
from areal_sdk.rollout.tasks import IssuedTask
from areal_sdk.rollout.trajectory import to_trajectories
from areal_sdk.trajectory import Trajectory, TrajectoryGroup
from areal_sdk.types import Episode, Outcome, Task, Turn

TASK = Task("t")


def answer(token: int, *, prompt: tuple[int, ...] = (1, 2), parent: int | None = None) -> Turn:
    return Turn(prompt, (token,), (-0.5,), (0,), parent=parent)


def episode(turns: tuple[Turn, ...], rewards: tuple[float | None, ...], id: str = "e") -> Episode:
    total = sum(reward or 0.0 for reward in rewards)
    return Episode(id, TASK, turns, Outcome.scored(total, turn_rewards=rewards))


def returns_of(turns: tuple[Turn, ...], *rewards: float | None) -> list[float | None]:
    trajectories = to_trajectories(episode(turns, rewards))
    assert len({t.turn_alternatives for t in trajectories}) == 1, "all of them know of all turns"
    return turn_returns(trajectories[0])


CONVERSATION = (
    answer(10),
    answer(11, prompt=(1, 2, 10, 3), parent=0),
    answer(12, prompt=(1, 2, 10, 3, 11, 4), parent=1),
)


def test_later_turns_of_a_conversation_are_consequences() -> None:
    assert returns_of(CONVERSATION, 0.5, None, 1.0) == [1.5, 1.0, 1.0]


def test_turns_whose_prompts_are_written_anew_are_consequences_of_the_earlier_ones() -> None:
    anew = tuple(replace(turn, parent=None) for turn in CONVERSATION)
    assert returns_of(anew, 0.5, None, 1.0) == [1.5, 1.0, 1.0]


def test_another_answer_to_the_same_prompt_is_no_consequence() -> None:
    assert returns_of((answer(10), answer(11)), 0.0, 1.0) == [0.0, 1.0]
    assert returns_of((answer(10), answer(10)), 1.0, 0.0) == [1.0, 0.0]
    assert returns_of((answer(10), answer(11)), None, 1.0) == [None, 1.0]


def test_what_goes_on_from_another_answer_is_no_consequence_either() -> None:
    turns = (
        answer(10),
        answer(11, prompt=(1, 2, 10, 3), parent=0),
        answer(12, prompt=(1, 2, 10, 3), parent=0),
        answer(13, prompt=(1, 2, 10, 3, 12, 4), parent=2),
        answer(14, prompt=(1, 2, 10, 3, 11, 4), parent=1),
    )
    assert returns_of(turns, 1.0, 2.0, 4.0, 8.0, 16.0) == [31.0, 18.0, 12.0, 8.0, 16.0]


def test_a_discount_counts_what_led_to_what_and_not_other_answers() -> None:
    other = (answer(10), answer(11), answer(12, prompt=(1, 2, 10, 3), parent=0))
    (first, *_) = to_trajectories(episode(other, (0.0, 0.0, 1.0)))
    assert turn_returns(first, discount=0.5) == [0.5, 0.0, 1.0], "turn 1 lies between, yet beside"
    (first, *_) = to_trajectories(episode(CONVERSATION, (0.0, None, 1.0)))
    assert turn_returns(first, discount=0.5) == [0.25, 0.5, 1.0]


def test_a_third_answer_that_siblings_did_not_try_is_compared_with_their_last() -> None:
    tried = to_trajectories(episode((answer(10), answer(11), answer(12)), (0.0, 0.0, 1.0), "a"))
    gave_up = to_trajectories(episode((answer(10), answer(11)), (0.0, 0.0), "b"))
    group = TrajectoryGroup("g", "t", (*tried, *gave_up))
    (advantages,) = GroupRelative(discount=1.0)([group], Evidence()).advantages
    assert [float(row[-1]) for row in advantages] == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_the_right_one_of_two_answers_is_the_one_that_is_reinforced() -> None:
    both = (answer(10), answer(11))
    wrong_first = to_trajectories(episode(both, (0.0, 1.0), "wrong first"))
    right_first = to_trajectories(episode(both, (1.0, 0.0), "right first"))
    group = TrajectoryGroup("g", "t", (*wrong_first, *right_first))
    (advantages,) = GroupRelative(discount=1.0)([group], Evidence()).advantages
    assert [float(row[-1]) for row in advantages] == [-1.0, 1.0, 1.0, -1.0]


def test_alternative_turns_reach_the_trainer() -> None:
    trajectories = to_trajectories(episode((answer(10), answer(11)), (0.0, 1.0)))
    assert trajectories[0].turn_alternatives == ((1,), ())
    group = TrajectoryGroup("g", "t", trajectories)
    assert decode_groups(*encode_groups([group])) == [group]


def test_equal_rewards_of_unlike_trees_are_not_uniform() -> None:
    members = []
    for turns in (CONVERSATION[:2], (answer(10), answer(11))):
        member = triage(episode(turns, (1.0, 0.0)))
        assert isinstance(member, ScoredEpisode)
        members.append(member)
    issued = IssuedTask(TASK, 0, 0)
    assert not FinishedGroup("g", issued, tuple(members)).is_uniform
    assert FinishedGroup("g", issued, (members[0], members[0])).is_uniform


@pytest.mark.parametrize("rewards", [(), (1.0,) * 64])
def test_episodes_without_turn_rewards_or_rivals_carry_none(rewards: tuple[float, ...]) -> None:
    turns = tuple(answer(10, prompt=(1, 2, 3 + i)) for i in range(64))
    outcome = Outcome.scored(1.0, turn_rewards=rewards)
    trajectories: tuple[Trajectory, ...] = to_trajectories(Episode("e", TASK, turns, outcome))
    assert {t.turn_alternatives for t in trajectories} == {()}
