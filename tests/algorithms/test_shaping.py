"""Shaped rewards of episodes whose answers fork, against plain loops over the turns."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from areal_sdk.algorithms.advantages.returns import turn_returns
from areal_sdk.algorithms.shaping import Overlong, RewardShaping
from areal_sdk.rollout.trajectory import mask_older, to_trajectories
from areal_sdk.trajectory import Trajectory, TrajectoryGroup
from areal_sdk.types import Episode, Outcome, Task, Turn, alternatives

from .trajectories import group


def forest(rnd: random.Random) -> list[Turn]:
    """Turns that begin anew, go on from an earlier turn, or answer an earlier prompt once more."""
    turns: list[Turn] = []
    for number in range(rnd.randint(2, 7)):
        kind, earlier = rnd.random(), rnd.randrange(number) if number else None
        prompt: tuple[int, ...] = (1, 300 + number)
        parent: int | None = None
        if earlier is not None and kind < 0.35:
            prompt, parent = turns[earlier].prompt_tokens, turns[earlier].parent
        elif earlier is not None and kind < 0.8:
            prompt, parent = (*turns[earlier].tokens, 200 + number), earlier
        turns.append(Turn(prompt, (100 + number,), (-0.5,), (0,), parent=parent))
    return turns


def plain_returns(turns: Sequence[Turn], rewards: Sequence[float | None]) -> list[float | None]:
    """The returns by their definition: a later turn came of an earlier one unless both chose other
    answers to a prompt."""
    chosen: list[dict[tuple[int, ...], int]] = []
    for number, turn in enumerate(turns):
        before = {} if turn.parent is None else chosen[turn.parent]
        chosen.append({**before, tuple(turn.prompt_tokens): number})
    found: list[float | None] = []
    for number, mine in enumerate(chosen):
        came = [
            reward
            for later, reward in enumerate(rewards)
            if reward is not None
            and later >= number
            and all(chosen[later].get(prompt, answer) == answer for prompt, answer in mine.items())
        ]
        found.append(sum(came) if came else None)
    return found


def test_returns_are_shaped_in_any_forest_of_turns() -> None:
    rnd = random.Random(0)
    num_checked = 0
    for _ in range(4000):
        turns = forest(rnd)
        rewards = tuple(rnd.choice([None, 0.0, 1.0, -2.0]) for _ in turns)
        bias, clip = rnd.choice([0.0, 0.7]), rnd.choice([None, 0.6])
        row = Trajectory(
            *("e", "t", (), (), (), (), (), ()),
            reward=sum(reward or 0.0 for reward in rewards),
            turn_rewards=rewards,
            turn_alternatives=alternatives(turns),
        )
        [shaped] = RewardShaping(scale=0.5, bias=bias, clip=clip)([group(row)])
        found = turn_returns(shaped.trajectories[0])
        for before, after in zip(plain_returns(turns, rewards), found, strict=True):
            num_checked += 1
            if before is None:
                assert after is None, (row.turn_alternatives, rewards)
                continue
            expected = (before + bias) * 0.5
            if clip is not None:
                expected = min(max(expected, -clip), clip)
            assert after == pytest.approx(expected, abs=1e-9), (row.turn_alternatives, rewards)
    assert num_checked > 17_000


def played(*turns: Turn, rewards: Sequence[float | None]) -> TrajectoryGroup:
    total = sum(reward or 0.0 for reward in rewards)
    outcome = Outcome.scored(total, turn_rewards=tuple(rewards))
    return group(*to_trajectories(Episode("e", Task("t"), turns, outcome)))


def answer(length: int, *, prompt: tuple[int, ...] = (1, 2), parent: int | None = None) -> Turn:
    return Turn(
        prompt, tuple(range(10, 10 + length)), (-1.0,) * length, (0,) * length, parent=parent
    )


SOFT = Overlong(limit=100, margin=50, penalty=1.0)


def soft_returns(*turns: Turn, rewards: Sequence[float | None]) -> list[float | None]:
    [shaped] = RewardShaping(overlong=SOFT)([played(*turns, rewards=rewards)])
    assert {t.reward for t in shaped.trajectories} == {
        sum(reward or 0.0 for reward in shaped.trajectories[0].turn_rewards)
    }
    return turn_returns(shaped.trajectories[0])


@pytest.mark.parametrize("lengths", [(100, 10), (10, 100), (40, 40), (75, 60, 5)])
def test_an_answer_pays_for_its_own_length_alone(lengths: tuple[int, ...]) -> None:
    found = soft_returns(*map(answer, lengths), rewards=[1.0] * len(lengths))
    assert found == [1.0 + SOFT(length) for length in lengths]


def test_a_turn_is_as_long_as_it_is_with_the_turns_before_it() -> None:
    """60 tokens lead to two answers: one of 40 is too long by that, and one of 5 a little."""
    first = answer(60)
    prompt = (*first.tokens, 3)
    turns = (first, *(answer(n, prompt=prompt, parent=0) for n in (40, 5)))
    assert soft_returns(*turns, rewards=[None, 1.0, 1.0]) == [
        2.0 + SOFT(100) + SOFT(65),
        1.0 + SOFT(100),
        1.0 + SOFT(65),
    ]


def test_turns_that_nobody_scored_count_for_the_scored_one_before_them() -> None:
    """The longer of two answers without a reward counts: the turn that led to both pays once."""
    first = answer(60)
    prompt = (*first.tokens, 3)
    turns = (first, *(answer(n, prompt=prompt, parent=0) for n in (5, 20)))
    assert soft_returns(*turns, rewards=[1.0, None, None]) == [1.0 + SOFT(80), None, None]


def test_each_answer_pays_for_what_follows_it_on_another_prompt() -> None:
    """A judge reads two answers. What it says is as much the consequence of one as of the other."""
    turns = (answer(90), answer(10), answer(10, prompt=(7, 8)))
    found = soft_returns(*turns, rewards=[1.0, 1.0, None])
    assert found == [1.0 + SOFT(100), 1.0 + SOFT(20), None]


def test_answers_whose_tokens_are_too_old_to_train_are_as_long_as_they_were() -> None:
    plain = played(answer(100), answer(10), rewards=[1.0, 1.0])
    masked = replace(plain, trajectories=tuple(mask_older(t, than=1) for t in plain.trajectories))
    [shaped] = RewardShaping(overlong=SOFT)([masked])
    assert turn_returns(shaped.trajectories[0]) == [0.0, 1.0]
