"""The sampled tokens that are trained, in which sequence, with what."""

import pickle
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from areal_sdk.algorithms.advantages.returns import returns_of
from areal_sdk.gateway.sessions.history import agreements
from areal_sdk.rollout.groups import FinishedGroup, Rejection, ScoredEpisode, triage
from areal_sdk.rollout.tasks import IssuedTask
from areal_sdk.rollout.trajectory import check_parents, mask_older, oldest_version, to_trajectories
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.trainer import IdleGroups
from areal_sdk.trajectory import TrajectoryGroup
from areal_sdk.types import Episode, Exclusion, Outcome, Task, Turn

TASK = Task("task")


def episode(*turns: Turn, outcome: Outcome | None = None) -> Episode:
    return Episode("e", TASK, turns, outcome or Outcome.scored(1.0))


def first(output: tuple[int, ...], *, prompt: tuple[int, ...] = (1, 2), version: int = 0) -> Turn:
    return Turn(
        prompt, output, tuple(-float(t) for t in output), (version,) * len(output), temperature=0.7
    )


def child(
    turns: list[Turn],
    parent: int,
    new: tuple[int, ...],
    output: tuple[int, ...],
    *,
    version: int = 1,
) -> Turn:
    before = turns[parent]
    prompt = before.prompt_tokens + before.output_tokens + new
    return replace(first(output, prompt=prompt, version=version), parent=parent)


def test_turns_of_one_conversation_are_one_sequence_with_only_sampled_tokens_trained() -> None:
    turns = [first((10, 11))]
    turns.append(child(turns, 0, (3, 4), (12,)))
    (trajectory,) = to_trajectories(episode(*turns))
    assert trajectory.tokens.tolist() == [1, 2, 10, 11, 3, 4, 12]
    assert trajectory.loss_mask.tolist() == [False, False, True, True, False, False, True]
    assert trajectory.logprobs.tolist() == [0, 0, -10.0, -11.0, 0, 0, -12.0]
    assert trajectory.versions.tolist() == [-1, -1, 0, 0, -1, -1, 1]
    assert trajectory.temperatures.tolist() == pytest.approx([1, 1, 0.7, 0.7, 1, 1, 0.7])
    assert trajectory.turn_of_token.tolist() == [-1, -1, 0, 0, -1, -1, 1]


def test_a_shared_turn_is_trained_in_the_first_branch_and_is_context_in_the_second() -> None:
    turns = [first((10,))]
    turns.append(child(turns, 0, (3,), (11,)))
    turns.append(child(turns, 0, (4,), (12,)))
    left, right = to_trajectories(episode(*turns))
    assert left.tokens.tolist() == [1, 2, 10, 3, 11]
    assert left.loss_mask.tolist() == [False, False, True, False, True]
    assert right.branch.whole.tolist() == [1, 2, 10, 4, 12]
    assert right.branch.before is left.branch
    assert right.tokens.tolist() == [4, 12], "what they share is stored once"
    assert right.loss_mask.tolist() == [False, True]
    assert right.logprobs.tolist() == [0.0, -12.0]
    assert right.versions.tolist() == [-1, 1]


def test_an_excluded_turn_is_context_and_what_follows_the_last_trained_token_is_cut() -> None:
    turns = [first((10,))]
    turns.append(replace(child(turns, 0, (3,), (11,)), excluded=Exclusion.GREEDY))
    (trajectory,) = to_trajectories(episode(*turns))
    assert trajectory.tokens.tolist() == [1, 2, 10]
    turns.append(child(turns, 1, (4,), (12,)))
    (trajectory,) = to_trajectories(episode(*turns))
    assert trajectory.tokens.tolist() == [1, 2, 10, 3, 11, 4, 12]
    assert trajectory.loss_mask.tolist() == [False, False, True, False, False, False, True]


def test_a_branch_of_excluded_turns_only_makes_no_sequence() -> None:
    turns = [first((10,))]
    turns.append(replace(child(turns, 0, (3,), (11,)), excluded=Exclusion.PENALTY))
    turns.append(replace(child(turns, 0, (4,), (12,)), excluded=Exclusion.PENALTY))
    assert len(to_trajectories(episode(*turns))) == 1
    assert to_trajectories(episode(*turns[1:0])) == ()


def test_an_empty_answer_is_not_trained() -> None:
    assert to_trajectories(episode(first(()))) == ()


def test_turn_rewards_travel_with_the_turn_of_each_token() -> None:
    turns = [first((10,))]
    turns.append(child(turns, 0, (3,), (11,)))
    outcome = Outcome.scored(1.0, turn_rewards=(0.25, None))
    (trajectory,) = to_trajectories(episode(*turns, outcome=outcome))
    assert trajectory.turn_rewards == (0.25, None)


def test_a_masked_episode_keeps_its_reward_for_the_baseline_and_trains_nothing() -> None:
    (trajectory,) = to_trajectories(episode(first((10, 11))), train=False)
    assert trajectory.reward == 1.0
    assert trajectory.num_trained == 0
    assert trajectory.oldest_version is None


@pytest.mark.parametrize(("policy", "num_trained"), [("score", 2), ("mask", 0), ("drop", None)])
def test_a_truncated_episode_is_trained_only_counted_or_dropped(
    policy: Literal["score", "mask", "drop"], num_trained: int | None
) -> None:
    verdict = triage(replace(episode(first((10, 11))), truncated=True), truncated=policy)
    if num_trained is None:
        assert isinstance(verdict, Rejection)
        assert verdict.reason is DropReason.TRUNCATED
        return
    assert isinstance(verdict, ScoredEpisode)
    assert verdict.reward == 1.0
    assert sum(t.num_trained for t in verdict.trajectories) == num_trained
    assert verdict.oldest_version == (0 if num_trained else None)
    whole = triage(episode(first((10, 11))), truncated=policy)
    assert isinstance(whole, ScoredEpisode), "what no limit cut is not touched"
    assert whole.oldest_version == 0


def test_a_turn_that_does_not_extend_its_parent_inherits_nothing() -> None:
    turns = [first((10,)), replace(first((11,), prompt=(1, 2, 99, 3)), parent=0)]
    with pytest.raises(ValueError, match="turn 1 names turn 0 as its parent but does not extend"):
        to_trajectories(episode(*turns))
    with pytest.raises(ValueError, match="parents come earlier"):
        check_parents([replace(first((10,)), parent=0)])


def test_an_episode_without_a_reward_is_never_turned_into_a_zero() -> None:
    with pytest.raises(ValueError, match="has no reward"):
        to_trajectories(episode(first((1,)), outcome=Outcome.abstained()))


@settings(max_examples=200)
@given(st.data())
def test_every_sampled_token_is_trained_exactly_once_with_its_own_numbers(
    data: st.DataObject,
) -> None:
    turns: list[Turn] = []
    for index in range(data.draw(st.integers(1, 8))):
        parent = data.draw(st.one_of(st.none(), st.integers(0, index - 1)) if index else st.none())
        output = tuple(data.draw(st.lists(st.integers(0, 9), min_size=0, max_size=3)))
        excluded = data.draw(st.sampled_from([None, None, Exclusion.GREEDY]))
        new = tuple(data.draw(st.lists(st.integers(0, 9), max_size=2)))
        made = (
            first(output, prompt=forked(data, turns, new), version=index)
            if parent is None
            else child(turns, parent, new, output, version=index)
        )
        versions = tuple(index + offset for offset in range(len(output)))  # they change mid-turn
        made = replace(made, excluded=excluded, versions=versions)
        turns.append(sharing(made, turns) if data.draw(st.booleans()) else made)
    chosen = data.draw(st.lists(st.sampled_from(turns), unique_by=id))
    check_each_token_is_trained_once(turns)
    alone = [replace(turn, parent=None) for turn in chosen]  # as an agent may return them
    check_each_token_is_trained_once(alone)


def forked(data: st.DataObject, turns: list[Turn], new: tuple[int, ...]) -> tuple[int, ...]:
    """A prompt that begins like some turn, up to anywhere in it."""
    begun = data.draw(st.sampled_from([(), *(turn.tokens for turn in turns)]))
    start = begun[: data.draw(st.integers(0, len(begun)))]
    return (*start, *new) if start else (1, *new)


def sharing(turn: Turn, turns: list[Turn]) -> Turn:
    """The turn as a session would record it."""
    agreed = agreements(turns, turn.prompt_tokens)
    keeper = max(range(len(turns)), key=lambda index: agreed[index], default=None)
    if keeper is None or not agreed[keeper]:
        return turn
    return replace(
        turn,
        new_tokens=turn.prompt_tokens[agreed[keeper] :],
        num_shared=agreed[keeper],
        shares_with=keeper,
        _before=turns[keeper],
    )


def check_each_token_is_trained_once(given_turns: list[Turn]) -> None:
    played = episode(*given_turns)
    turns = played.turns
    for turn, original in zip(turns, given_turns, strict=True):
        assert turn.tokens == original.tokens
    assert [t.tokens for t in pickle.loads(pickle.dumps(played)).turns] == [t.tokens for t in turns]
    trained: list[tuple[int, int]] = []
    for trajectory in to_trajectories(played):
        assert trajectory.num_trained > 0
        for position, train in enumerate(trajectory.loss_mask):
            turn_index = trajectory.turn_of_token[position]
            if not train:
                assert (trajectory.logprobs[position], trajectory.versions[position]) == (0.0, -1)
                assert turn_index == -1
                continue
            turn = turns[turn_index]
            place = trajectory.branch.num_before + position
            offset = place - len(turn.prompt_tokens)
            assert tuple(trajectory.branch.whole[:place]) == turn.tokens[:place]
            assert trajectory.tokens[position] == turn.output_tokens[offset]
            assert trajectory.logprobs[position] == np.float32(turn.logprobs[offset])
            assert trajectory.versions[position] == turn.versions[offset]
            trained.append((turn_index, offset))
    expected = [
        (index, offset)
        for index, turn in enumerate(turns)
        for offset in range(len(turn.output_tokens))
        if turn.excluded is None
    ]
    assert sorted(trained) == expected


def test_masking_old_tokens_leaves_the_fresh_ones_as_they_were() -> None:
    turns = [first((10, 11), version=3)]
    turns.append(child(turns, 0, (3,), (12,), version=5))
    (trajectory,) = to_trajectories(episode(*turns))
    masked = mask_older(trajectory, than=5)
    assert masked.loss_mask.tolist() == [False, False, False, False, False, True]
    assert masked.logprobs.tolist() == [0, 0, 0, 0, 0, -12.0]
    assert masked.tokens.tolist() == trajectory.tokens.tolist()
    assert oldest_version([trajectory]) == 3
    assert oldest_version([masked]) == 5
    assert mask_older(trajectory, than=3) is trajectory


@pytest.mark.parametrize("how", ["masked", "last turn not trained", "too old"])
def test_turns_without_a_trained_token_count_in_the_discount(how: str) -> None:
    """A masked sibling's first turn once counted with the whole reward, as if it were its last."""
    turns = [first((10,), version=1)]
    for _ in range(2):
        turns.append(child(turns, -1, (3,), (11,), version=1))
        turns[-1] = replace(turns[-1], parent=len(turns) - 2)
    if how == "last turn not trained":
        turns[-1] = replace(turns[-1], excluded=Exclusion.GREEDY)
    rows = to_trajectories(episode(*turns), train=how != "masked")
    if how == "too old":
        rows = tuple(mask_older(row, than=2) for row in rows)
    returns = returns_of(TrajectoryGroup("g", "task", rows), discount=0.5)
    assert returns == {"e": [0.25, 0.5, 1.0]}


@pytest.mark.parametrize(
    ("idle", "dropped"),
    [
        (IdleGroups.EQUAL_REWARDS, [True, True, False]),
        (IdleGroups.EQUAL_EPISODES, [False, True, False]),
        (IdleGroups.NONE, [False, False, False]),
    ],
)
def test_dynamic_sampling_keeps_groups_that_still_teach(
    idle: IdleGroups, dropped: list[bool]
) -> None:
    """A discount tells apart who was quicker; a running baseline needs no siblings to differ."""
    turn = first((10,))
    short, long = episode(turn), episode(turn, replace(turn, new_tokens=(1, 2, 10, 3)))
    failed = episode(turn, outcome=Outcome.scored(0.0))

    def is_idle(*episodes: Episode) -> bool:
        members = [triage(e) for e in episodes]
        scored = tuple(m for m in members if isinstance(m, ScoredEpisode))
        return FinishedGroup("g", IssuedTask(TASK, 0, 0), scored).is_idle(idle)

    assert [is_idle(short, long), is_idle(short, short), is_idle(short, failed)] == dropped
