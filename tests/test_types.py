"""The nouns show what a person wants to see of them, and stay equal to what they were."""

import pickle
from dataclasses import replace

import numpy as np

from areal_sdk.trajectory import Trajectory, TrajectoryGroup
from areal_sdk.types import Episode, ErrorKind, Outcome, Task, Turn

TURN = Turn(
    new_tokens=tuple(range(3000)),
    output_tokens=tuple(range(500)),
    logprobs=(-0.5,) * 500,
    versions=(3,) * 500,
    message={"role": "assistant", "content": "The answer\nis " + "long " * 99},
)
EPISODE = Episode("train-1.0", Task("train-1"), (TURN, TURN), Outcome.scored(0.5))
TRAJECTORY = Trajectory(
    episode_id="train-1.0",
    task_id="train-1",
    tokens=(7,) * 3500,
    loss_mask=(False,) * 3000 + (True,) * 500,
    logprobs=(0.0,) * 3500,
    versions=(-1,) * 3500,
    temperatures=(1.0,) * 3500,
    turn_of_token=(0,) * 3500,
    reward=0.5,
)
GROUP = TrajectoryGroup("train-1", "train-1", (TRAJECTORY, TRAJECTORY))


def test_what_holds_tokens_is_shown_in_one_line_without_them() -> None:
    turn, episode, trajectory, group = map(repr, (TURN, EPISODE, TRAJECTORY, GROUP))
    assert turn.startswith(r"<Turn 3000 + 500 tokens, stop: 'The answer\nis long")
    assert episode.startswith(
        "<Episode train-1.0 of train-1: reward 0.5, 2 turns, 1000 tokens sampled: 'The answer"
    )
    assert trajectory == ("<Trajectory of train-1.0: reward 0.5, 3500 tokens, 500 of them trained>")
    assert group == (
        "<TrajectoryGroup train-1 of train-1: 1 episodes in 2 trajectories, rewards 0.5>"
    )
    assert all(
        len(shown) < 200 and "\n" not in shown for shown in (turn, episode, trajectory, group)
    )


def test_a_verdict_that_is_no_reward_is_shown_too() -> None:
    failed = Outcome.failed(ErrorKind.AGENT, "it raised ValueError")
    assert "agent error 'it raised ValueError', 0 turns" in repr(
        Episode("e", Task("t"), (), failed, truncated=True)
    )
    assert "abstained" in repr(Episode("e", Task("t"), (), Outcome.abstained()))


def test_a_call_is_shown_by_its_name() -> None:
    call = {"type": "function", "function": {"name": "calculator", "arguments": "{}"}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    assert repr(Turn((1,), (2,), (-1.0,), (0,), message)) == (
        "<Turn 1 + 1 tokens, stop, calls calculator: ''>"
    )


def test_pickling_and_equality_are_of_the_tokens() -> None:
    for noun in (TURN, EPISODE, TRAJECTORY, GROUP):
        assert pickle.loads(pickle.dumps(noun)) == noun
    assert Turn((), (), (), ()) != TURN


def test_a_trajectory_keeps_its_tokens_when_what_it_was_made_of_changes() -> None:
    logprobs, tokens = np.zeros(3500, np.float32), np.full(3500, 7, np.int32)
    made = replace(TRAJECTORY, tokens=tokens, logprobs=logprobs)
    tokens[:] = logprobs[:] = 9
    assert made == TRAJECTORY
    assert replace(made, reward=1.0).tokens.base is made.tokens.base, "what is frozen is shared"
