"""Several policies in one episode: which tokens and which rewards belong to which policy."""

from dataclasses import replace
from itertools import pairwise

import orjson
import pytest

from areal_sdk.algorithms.advantages.returns import returns_of
from areal_sdk.fsdp.group_wire import encode_groups
from areal_sdk.rollout.groups import FinishedGroup, ScoredEpisode, triage
from areal_sdk.rollout.judging.verdicts import combine, read_verdict
from areal_sdk.rollout.tasks import IssuedTask
from areal_sdk.rollout.trajectory import to_trajectories
from areal_sdk.telemetry.episode_rows import (
    episode_row,
    read_episode_row,
    read_trajectory_rows,
    trajectory_rows,
)
from areal_sdk.telemetry.files import to_json
from areal_sdk.trainer import IdleGroups
from areal_sdk.trajectory import TrajectoryGroup
from areal_sdk.types import Episode, Exclusion, Outcome, Task, Turn

TASK = Task("task")


def turn(policy: str, *output: int, prompt: tuple[int, ...] = (1, 2), **more: object) -> Turn:
    logprobs = tuple(-float(token) for token in output)
    made = Turn(prompt, output, logprobs, (3,) * len(output))
    return replace(made, policy=policy, **more)  # type: ignore[arg-type]


def debate(outcome: Outcome, *, sibling: int = 0) -> Episode:
    """The planner, the coder, and the planner again, who goes on from its first turn."""
    planner, coder = turn("planner", 10, 11), turn("coder", 20, prompt=(1, 5))
    again = turn("planner", 12, prompt=(1, 2, 10, 11, 6), parent=0)
    return Episode(f"e{sibling}", TASK, (planner, coder, again), outcome, sibling=sibling)


def test_each_policy_trains_its_own_tokens_with_its_own_reward() -> None:
    episode = debate(Outcome.scored(0.5, by_policy={"planner": 1.0, "coder": -1.0}))
    coder, planner = to_trajectories(episode)
    assert (planner.policy, planner.reward, planner.num_sampled) == ("planner", 1.0, 3)
    assert planner.tokens[planner.loss_mask].tolist() == [10, 11, 12]
    assert planner.turn_of_token[planner.loss_mask].tolist() == [0, 0, 2]
    assert (coder.policy, coder.reward, coder.num_sampled) == ("coder", -1.0, 1)
    assert coder.tokens[coder.loss_mask].tolist() == [20]
    assert coder.branch.before is None
    assert planner.branch.before is None


def test_a_reward_without_a_policy_is_the_reward_of_all() -> None:
    rewards = {t.policy: t.reward for t in to_trajectories(debate(Outcome.scored(0.5)))}
    assert rewards == {"planner": 0.5, "coder": 0.5}


def test_a_turn_s_reward_is_of_the_policy_that_took_the_turn() -> None:
    """Returns by hand: the planner's turns have 1 and 4, so its returns are 5 and 4; the coder's turn has 2."""
    outcome = Outcome.scored(7.0, turn_rewards=(1.0, 2.0, 4.0))
    coder, planner = to_trajectories(debate(outcome))
    assert planner.turn_rewards == (1.0, None, 4.0)
    assert coder.turn_rewards == (None, 2.0, None)
    for trajectory, expected in ((planner, [5.0, 4.0, 4.0]), (coder, [2.0, 2.0, None])):
        group = TrajectoryGroup("g", "task", (trajectory,))
        assert returns_of(group, discount=1.0) == {"e0": expected}


def test_a_frozen_policy_s_tokens_are_never_trained() -> None:
    episode = debate(Outcome.scored(1.0))
    frozen = replace(episode.turns[1], excluded=Exclusion.FROZEN_POLICY)
    (trajectory,) = to_trajectories(replace(episode, turns=(episode.turns[0], frozen)))
    assert trajectory.policy == "planner"


def test_a_turn_cannot_continue_a_turn_of_another_policy() -> None:
    first = turn("planner", 10)
    second = turn("coder", 20, prompt=(1, 2, 10, 3), parent=0)
    with pytest.raises(ValueError, match="sequences never mix policies"):
        to_trajectories(Episode("e", TASK, (first, second), Outcome.scored(1.0)))


def test_two_policies_that_answer_one_prompt_are_no_alternatives() -> None:
    turns = (turn("planner", 10), turn("coder", 20), turn("planner", 11))
    outcome = Outcome.scored(1.0, turn_rewards=(None, None, 1.0))
    trajectories = to_trajectories(Episode("e", TASK, turns, outcome))
    assert [t.turn_alternatives[:2] for t in trajectories] == 3 * [((2,), ())]
    lengths = {t.policy: t.turn_lengths for t in trajectories}
    assert lengths == {"planner": (1, 0, 1), "coder": (0, 1, 0)}


def test_the_sequences_of_a_policy_hold_one_record_of_its_turns() -> None:
    """An episode of a thousand turns that all fork would else hold a million numbers, and send them to each rank."""
    turns = tuple(turn("planner", 10, prompt=(1, n // 2)) for n in range(8))
    outcome = Outcome.scored(1.0, turn_rewards=(1.0,) * 8)
    trajectories = to_trajectories(Episode("e", TASK, turns, outcome))
    assert len(trajectories) == 8
    assert trajectories[0].turn_lengths == (1,) * 8
    for first, other in pairwise(trajectories):
        assert other.turn_lengths is first.turn_lengths
        assert other.turn_rewards is first.turn_rewards


def test_a_group_teaches_if_the_rewards_of_one_policy_differ() -> None:
    def group(*rewards: float) -> FinishedGroup:
        members = [
            triage(debate(Outcome.scored(0.0, by_policy={"planner": r, "coder": -r}), sibling=i))
            for i, r in enumerate(rewards)
        ]
        scored = [member for member in members if isinstance(member, ScoredEpisode)]
        return FinishedGroup("g", IssuedTask(TASK, 0, 0), tuple(scored))

    assert not group(1.0, -1.0).is_idle(IdleGroups.EQUAL_REWARDS)
    assert group(1.0, 1.0).is_idle(IdleGroups.EQUAL_REWARDS)


def test_rewards_of_policies_add_up_by_weight_and_are_reported() -> None:
    """Sums by hand: white has 2 * 1 + 0.5 * 1 = 2.5, black 2 * -1 + 0.5 * 1 = -1.5."""
    won = Outcome.scored(0.0, by_policy={"white": 1.0, "black": -1.0})
    outcome = combine({"won": (2.0, won), "form": (0.5, Outcome.scored(1.0))}, num_turns=1)
    assert outcome.by_policy == {"white": 2.5, "black": -1.5}
    assert outcome.reported["policy/white"] == 2.5


def test_a_reward_of_the_episode_beside_one_of_turns_counts_for_every_policy() -> None:
    style = Outcome.scored(0.5, turn_rewards=(0.5, None))
    both = {"style": (1.0, style), "works": (1.0, Outcome.scored(1.0))}
    assert combine(both, num_turns=2, last_turns={0, 1}).turn_rewards == (1.5, 1.0)
    assert combine(both, num_turns=2).turn_rewards == (0.5, 1.0), "one policy"


def test_a_reward_for_some_of_the_trained_policies_is_refused() -> None:
    episode = debate(Outcome.abstained())
    with pytest.raises(ValueError, match="none of 'planner', which the episode trains"):
        read_verdict(Outcome.scored(0.0, by_policy={"planer": 1.0, "coder": 0.0}), episode)


def test_episodes_on_disk_keep_their_policies() -> None:
    for outcome in (Outcome.scored(0.5), Outcome.scored(0.5, by_policy={"planner": 1, "coder": 0})):
        episode = debate(outcome)
        trajectories = to_trajectories(episode)
        row = orjson.loads(to_json(episode_row(episode)))
        rows = orjson.loads(to_json(trajectory_rows(trajectories, episode)))
        assert read_episode_row(row) == episode
        assert read_trajectory_rows(rows, episode) == trajectories


def test_a_trainer_of_one_policy_refuses_the_tokens_of_two() -> None:
    group = TrajectoryGroup("g", "t", to_trajectories(debate(Outcome.scored(1.0))))
    with pytest.raises(ValueError, match="tokens of 2 policies"):
        encode_groups([group])
