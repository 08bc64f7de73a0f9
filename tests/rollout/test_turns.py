"""Turns of one conversation share their tokens: in memory, on disk and on the wire."""

import json
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from areal_sdk.fsdp.group_wire import decode_groups, encode_groups
from areal_sdk.rollout.trajectory import to_trajectories
from areal_sdk.telemetry.episode_log import EpisodeWriter, find_episode
from areal_sdk.telemetry.episode_rows import episode_row, read_episode_row, trajectory_rows
from areal_sdk.telemetry.files import to_json
from areal_sdk.trajectory import TrajectoryGroup
from areal_sdk.types import (
    Episode,
    Exclusion,
    ForkReason,
    Outcome,
    Task,
    Turn,
    pack_turns,
    unpack_turns,
)


def conversation(length: int, *, first_prompt: int = 500) -> Iterator[Turn]:
    """Turns that each add five tokens to the prompt and sample three."""
    before, token = None, 0
    for index in range(length):
        new = tuple(range(token, token + (first_prompt if before is None else 5)))
        token += len(new)
        said = (token, token + 1, token + 2)
        token += 3
        parent = None if before is None else index - 1
        before = Turn(
            new,
            said,
            (-0.5,) * 3,
            (0,) * 3,
            parent=parent,
            num_shared=0 if before is None else before.num_tokens,
            _before=before,
        )
        yield before


def episode(turns: tuple[Turn, ...]) -> Episode:
    return Episode("e", Task("t"), turns, Outcome.scored(1.0))


def test_a_turn_has_its_whole_prompt_and_stores_what_it_adds() -> None:
    turns = tuple(conversation(50))
    everything = tuple(range(turns[-1].num_tokens))
    for turn in turns:
        assert turn.tokens == everything[: turn.num_tokens]
        assert turn.prompt_tokens == everything[: turn.num_prompt]
    assert sum(len(turn.new_tokens) for turn in turns) == 500 + 49 * 5
    (trajectory,) = to_trajectories(episode(turns))
    assert tuple(trajectory.tokens) == everything
    assert trajectory.num_trained == 150


@pytest.mark.parametrize("length", [1, 2, 2000])
def test_an_episode_crosses_to_another_process_whole_and_once(length: int) -> None:
    before = episode(tuple(conversation(length)))
    packed = pickle.dumps(before, protocol=pickle.HIGHEST_PROTOCOL)
    after = pickle.loads(packed)
    assert after == before
    assert after.turns[-1].tokens == before.turns[-1].tokens
    assert len(packed) < 5000 + 400 * length
    assert all(turn.extends(after.turns[turn.parent]) for turn in after.turns[1:])
    assert len(after.turns[-1].new_tokens) <= 500


def test_branches_cross_to_another_process_below_their_own_parents() -> None:
    first, second, third = conversation(3)
    aside = replace(first, new_tokens=(7, 8, 9))
    branch = replace(second, new_tokens=(1, 2, 3, 4), parent=0, _before=first)
    before = episode((first, aside, replace(second, parent=0), branch, replace(third, parent=2)))
    after = pickle.loads(pickle.dumps(before))
    assert [turn.tokens for turn in after.turns] == [turn.tokens for turn in before.turns]
    assert to_trajectories(after) == to_trajectories(before)


def test_a_turn_alone_crosses_with_its_whole_prompt() -> None:
    *_, last = conversation(2000)
    after = pickle.loads(pickle.dumps(last))
    assert (after.tokens, after.num_prompt) == (last.tokens, last.num_prompt)


def test_what_is_written_of_an_episode_grows_with_its_tokens(tmp_path: Path) -> None:
    for length in (10, 100):
        writer = EpisodeWriter(tmp_path / str(length))
        before = episode(tuple(conversation(length)))
        writer.write(before)
        writer.close()
        record = find_episode(tmp_path / str(length), "e")
        assert record is not None
        assert record.episode == before
        assert record.episode.turns[-1].tokens == before.turns[-1].tokens
        assert len(to_json(episode_row(before))) < 4000 + 500 * length


def test_turns_taken_out_of_their_conversation_keep_their_prompts() -> None:
    first, second, third = conversation(3)
    assert replace(second, parent=None).tokens == second.tokens
    for kept in ((first, replace(third, parent=0)), (replace(first), second, third), (third,)):
        taken = episode(kept)
        again = pickle.loads(pickle.dumps(taken))
        for turn, original in zip(again.turns, kept, strict=True):
            assert turn.tokens == original.tokens


def test_a_turn_that_keeps_its_whole_prompt_still_extends_its_parent() -> None:
    first, second = conversation(2)
    whole = replace(second, new_tokens=second.prompt_tokens, num_shared=0, _before=None)
    assert whole.extends(first)
    assert not replace(whole, new_tokens=(9, *whole.new_tokens[1:])).extends(first)


def test_episodes_of_older_runs_which_hold_whole_prompts_are_read() -> None:
    row = json.loads(to_json(episode_row(episode(tuple(conversation(3))))))
    for turn, known in zip(row["turns"], conversation(3), strict=True):
        for name in ("new_tokens", "num_shared", "shares_with"):
            turn.pop(name, None)
        turn["prompt_tokens"] = known.prompt_tokens
    read = read_episode_row(row)
    for turn, known in zip(read.turns, conversation(3), strict=True):
        assert turn.tokens == known.tokens


def forks(length: int, *, said: int = 20) -> tuple[Turn, ...]:
    """Each prompt is the one before it and what was said last, without the thought in it."""
    turns: list[Turn] = []
    prompt: tuple[int, ...] = tuple(range(50))
    for index in range(length):
        output = tuple(1000 + index * said + offset for offset in range(said))
        num_shared = turns[-1].num_prompt if turns else 0
        turns.append(
            Turn(
                prompt[num_shared:],
                output,
                (-0.5,) * said,
                (0,) * said,
                new_messages=({"role": "user", "content": "?" * 50},) * (index + 1),
                fork=ForkReason.THINKING_DROPPED if turns else None,
                num_shared=num_shared,
                shares_with=index - 1 if turns else None,
                _before=turns[-1] if turns else None,
            )
        )
        prompt = (*prompt, *output[-5:], index)
    return tuple(turns)


def test_forks_of_an_episode_store_their_common_prefix_once(tmp_path: Path) -> None:
    for length in (10, 300):
        before = episode(forks(length))
        assert sum(len(turn.new_tokens) for turn in before.turns) == 50 + 6 * (length - 1)
        trajectories = to_trajectories(before)
        assert sum(len(t.tokens) for t in trajectories) == 50 + 26 * length - 6
        assert [t.branch.whole.tolist() for t in trajectories] == [
            list(turn.tokens) for turn in before.turns
        ]
        references = 2 * length**2  # to the messages, which are in it once
        assert len(pickle.dumps(before)) < 5000 + 600 * length + references
        (again,) = decode_groups(*encode_groups([TrajectoryGroup("g", "t", trajectories)]))
        assert again.trajectories == trajectories
        writer = EpisodeWriter(tmp_path / str(length))
        writer.write(before, trajectories=trajectories)
        writer.close()
        rows = episode_row(before), trajectory_rows(trajectories, before)
        assert len(to_json(rows)) < 5000 + 900 * length + references
        record = find_episode(tmp_path / str(length), "e")
        assert record is not None
        assert record.episode == before
        assert record.trajectories == trajectories
        assert record.trajectories[-1].branch.before is record.trajectories[-2].branch


def test_forks_of_which_some_are_left_out_share_what_remains() -> None:
    turns = forks(6)
    kept = episode((turns[1], turns[3], replace(turns[2], excluded=Exclusion.SIDE_CALL), turns[5]))
    assert [turn.tokens for turn in kept.turns] == [turns[i].tokens for i in (1, 3, 2, 5)]
    assert [turn.shares_with for turn in kept.turns] == [None, 0, 0, 1]
    assert [turn.num_shared for turn in kept.turns] == [0, 56, 56, 68]


def test_an_episode_that_was_changed_still_shares() -> None:
    """A session excludes its side calls when it closes, and a turn's verdict is written into it."""
    turns = forks(4)
    changed = episode((replace(turns[0], excluded=Exclusion.SIDE_CALL), *turns[1:]))
    assert [turn.num_shared for turn in changed.turns] == [0, 50, 56, 62]
    assert all(turn._before is changed.turns[turn.shares_with or 0] for turn in changed.turns[1:])


def test_a_turn_cannot_share_more_than_there_is() -> None:
    first, second, *_ = forks(2)
    with pytest.raises(ValueError, match="num_shared = 71: the turn before has 70 tokens"):
        replace(second, num_shared=71)
    with pytest.raises(ValueError, match="num_shared = 1: the turn before has 0 tokens"):
        replace(first, num_shared=1)


def test_turns_are_equal_by_their_tokens_however_they_are_kept() -> None:
    second = forks(2)[1]
    alone = pickle.loads(pickle.dumps(second))
    assert (alone.num_shared, second.num_shared) == (0, 50)
    assert alone == second
    assert replace(alone, new_tokens=(7, *alone.new_tokens[1:])) != second


def test_a_session_in_a_worker_gets_turns_that_share() -> None:
    turns = forks(4)
    known = unpack_turns(pickle.loads(pickle.dumps(pack_turns(turns[:2]))))
    known += unpack_turns(pickle.loads(pickle.dumps(pack_turns(turns[2:]))), known)
    assert [turn.tokens for turn in known] == [turn.tokens for turn in turns]
    assert sum(len(turn.new_tokens) for turn in known) == 50 + 6 * 3
