"""A posted reward was answered 200: whatever the agent returns, it counts, or the episode says why not.

Code that was written for `serve --learn` posts rewards; the same code may also return one.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import openai
import pytest

from areal_sdk.agent import EpisodeContext, RolloutWorkflow
from areal_sdk.gateway.sessions.session import SessionLimits
from areal_sdk.rollout.agents.environment import EnvironmentAgent
from areal_sdk.rollout.judging.reward_pool import RewardPool, RewardSpec
from areal_sdk.types import Episode, ErrorKind, Outcome, OutcomeKind, Task
from tests.rollout import sample_rewards
from tests.rollout.countdown import Countdown
from tests.rollout.playing import ask, play

Rewards = Sequence[Mapping[str, Any]]

FIRST_TURN = {"reward": 0.25, "turn": 0}
LAST_TURN = {"reward": 0.5, "turn": 1}
WHOLE = {"reward": 1.0}


async def post(context: EpisodeContext, rewards: Rewards) -> None:
    async with openai.AsyncOpenAI(base_url=context.base_url, api_key=context.api_key) as client:
        for reward in rewards:
            await client.post("/reward", body=dict(reward), cast_to=object)


def asks_twice(*posted: Mapping[str, Any], then: Any) -> Any:
    """An agent of two turns that posts rewards, and returns or raises `then`."""

    async def agent(task: Task, context: EpisodeContext) -> Any:
        await ask(context, "one")
        await ask(context, "two")
        await post(context, posted)
        if isinstance(then, Exception):
            raise then
        return then

    return agent


async def verdict(
    *posted: Mapping[str, Any], then: Any, model_dir: Path, **options: Any
) -> Outcome:
    return (await play(asks_twice(*posted, then=then), "4", model_dir, **options)).outcome


@pytest.mark.parametrize(
    ("posted", "returned", "turn_rewards", "reward", "success"),
    [
        ([FIRST_TURN], 0.5, (0.25, 0.5), 0.75, False),
        ([FIRST_TURN], 1.0, (0.25, 1.0), 1.25, True),
        ([LAST_TURN], 1.0, (None, 1.5), 1.5, True),
        ([FIRST_TURN, WHOLE], 1.0, (0.25, 1.0), 1.25, True),
        ([FIRST_TURN], Outcome.scored(0.5, success=True), (0.25, 0.5), 0.75, True),
        ([FIRST_TURN], Outcome.scored(0.5, turn_rewards=(None, 0.5)), (0.25, 0.5), 0.75, False),
        ([FIRST_TURN], Outcome.scored(1.0, turn_rewards=(0.25, 0.75)), (0.25, 0.75), 1.0, True),
        ([WHOLE], Outcome.scored(1.0, turn_rewards=(0.25, 0.75)), (0.25, 0.75), 1.0, None),
        ([WHOLE], 1.0, (), 1.0, None),
        ([{"reward": 9.0}, WHOLE], 1.0, (), 1.0, None),
        ([FIRST_TURN, WHOLE], None, (0.25, 1.0), 1.25, True),
        ([FIRST_TURN, LAST_TURN], None, (0.25, 0.5), 0.75, None),
    ],
)
async def test_posted_and_returned_rewards_add_up(
    posted: Rewards,
    returned: Any,
    turn_rewards: tuple[float | None, ...],
    reward: float,
    success: bool | None,
    model_dir: Path,
) -> None:
    """A number that an agent returns is the reward of the episode, as if it were posted last."""
    outcome = await verdict(*posted, then=returned, model_dir=model_dir)
    assert outcome == Outcome.scored(reward, success=success, turn_rewards=turn_rewards)


@pytest.mark.parametrize(
    ("posted", "returned", "message"),
    [
        ([WHOLE], 0.5, "a reward of 1 was posted for the episode, and 0.5 was returned"),
        ([WHOLE], Outcome.scored(0.5), "a reward of 1 was posted for the episode"),
        ([FIRST_TURN, WHOLE], 0.0, "a reward of 1 was posted for the episode, and 0 was"),
        (
            [FIRST_TURN],
            Outcome.scored(1.0, turn_rewards=(0.0, 1.0)),
            "a reward of 0.25 was posted for turn 0, and 0 was returned",
        ),
    ],
)
async def test_two_different_rewards_for_one_thing_are_the_agents_error(
    posted: Rewards, returned: Any, message: str, model_dir: Path
) -> None:
    outcome = await verdict(*posted, then=returned, model_dir=model_dir, on_agent_error=-1.0)
    assert outcome.error is ErrorKind.AGENT
    assert message in outcome.message
    assert "give one of them" in outcome.message


async def test_an_agent_that_abstains_says_how_many_rewards_it_leaves(model_dir: Path) -> None:
    abstained = Outcome.abstained("a broken tool")
    outcome = await verdict(FIRST_TURN, WHOLE, then=abstained, model_dir=model_dir)
    assert outcome.kind is OutcomeKind.ABSTAIN
    assert outcome.message == "a broken tool; 2 posted rewards are not used"


async def test_rewards_by_completion_add_up_with_posted_ones(model_dir: Path) -> None:
    class Completions:
        async def run(self, data: dict[str, Any], **extra: Any) -> dict[str, float]:
            url, key = extra["base_url"], extra["api_key"]
            async with openai.AsyncOpenAI(base_url=url, api_key=key) as client:
                answers = [
                    await client.chat.completions.create(
                        model="policy", messages=[{"role": "user", "content": text}]
                    )
                    for text in ("one", "two")
                ]
                await client.post("/reward", body=dict(FIRST_TURN), cast_to=object)
            return {answers[1].id: 0.5}

    outcome = (await play(Completions(), "4", model_dir)).outcome
    assert outcome.turn_rewards == (0.25, 0.5)
    assert outcome.reward == 0.75


@pytest.mark.parametrize(
    ("own", "turn_rewards"),
    [((None, 0.5), (0.25, 0.5)), ((None, None), (0.25, None)), ((0.25, 0.5), (0.25, 0.5))],
)
async def test_rewards_of_an_environment_add_up_with_posted_ones(
    own: tuple[float | None, ...], turn_rewards: tuple[float | None, ...], model_dir: Path
) -> None:
    class Posting(EnvironmentAgent):
        async def run_episode(self, task: Task, context: EpisodeContext) -> Outcome | None:
            outcome = await super().run_episode(task, context)
            await post(context, [FIRST_TURN])
            return outcome

    outcome = (await play(Posting(lambda: Countdown(own)), "down", model_dir)).outcome
    assert outcome.turn_rewards == turn_rewards
    assert outcome.reward == sum(reward or 0.0 for reward in turn_rewards)


class Chooses(RolloutWorkflow):
    """Samples three turns, posts a reward for one of them and returns an episode of two others."""

    def __init__(self, rewarded: int, chosen: Sequence[int]) -> None:
        self._rewarded, self._chosen = rewarded, chosen

    async def run_episode(self, task: Task, context: EpisodeContext) -> Episode:
        for text in ("one", "two", "three"):
            await context.generate([{"role": "user", "content": text}])
        await post(context, [{"reward": 0.25, "turn": self._rewarded}])
        turns = tuple(context.turns[index] for index in self._chosen)
        return Episode("mine", task, turns, Outcome.scored(1.0))


async def test_a_posted_reward_follows_its_turn_into_a_returned_episode(model_dir: Path) -> None:
    outcome = (await play(Chooses(2, [2, 0]), "4", model_dir)).outcome
    assert outcome == Outcome.scored(1.25, success=True, turn_rewards=(0.25, 1.0))


async def test_a_returned_episode_may_not_leave_out_a_rewarded_turn(model_dir: Path) -> None:
    outcome = (await play(Chooses(1, [2, 0]), "4", model_dir)).outcome
    assert outcome.error is ErrorKind.AGENT
    assert "posted for turn 1, which the returned episode leaves out" in outcome.message


async def test_an_agent_that_raises_makes_an_error_of_what_it_posted(model_dir: Path) -> None:
    outcome = await verdict(WHOLE, then=RuntimeError("late"), model_dir=model_dir)
    assert outcome.error is ErrorKind.AGENT


@pytest.mark.parametrize(
    ("posted", "turn_rewards", "reward", "success"),
    [
        ([FIRST_TURN], (0.25, -1.0), -0.75, False),
        ([WHOLE], (), 1.0, None),
        ([FIRST_TURN, WHOLE], (0.25, 1.0), 1.25, True),
    ],
)
async def test_a_reward_for_exceptions_stands_in_for_a_missing_one_of_the_episode(
    posted: Rewards,
    turn_rewards: tuple[float | None, ...],
    reward: float,
    success: bool | None,
    model_dir: Path,
) -> None:
    raised = RuntimeError("late")
    outcome = await verdict(*posted, then=raised, model_dir=model_dir, on_agent_error=-1.0)
    assert (outcome.turn_rewards, outcome.reward) == (turn_rewards, reward)
    assert outcome.success is success
    assert outcome.metrics == {"agent_error": 1.0}
    assert "late" in outcome.message


async def test_what_was_posted_before_a_limit_counts_if_the_agent_raises_there(
    model_dir: Path, tmp_path: Path
) -> None:
    async def agent(task: Task, context: EpisodeContext) -> None:
        await ask(context, "one")
        await post(context, [FIRST_TURN])
        while True:
            await ask(context, "more")

    specs = [RewardSpec.of("length", sample_rewards.length)]
    async with RewardPool(specs, log_dir=tmp_path) as pool:
        limits = SessionLimits(max_turns=2)
        for options in ({}, {"rewards": pool}, {"on_agent_error": -1.0}):
            episode = await play(agent, "4", model_dir, limits=limits, **options)
            assert episode.truncated
            assert episode.outcome == Outcome.scored(0.25, turn_rewards=(0.25, None))


async def test_reward_functions_that_posted_rewards_keep_from_judging_are_named_once(
    model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    specs = [RewardSpec.of("length", sample_rewards.length)]
    async with RewardPool(specs, log_dir=tmp_path) as pool:
        outcome = await verdict(FIRST_TURN, then=None, model_dir=model_dir, rewards=pool)
    assert outcome.turn_rewards == (0.25, None)
    assert caplog.text.count("posts its own rewards, so the configured rewards (length)") == 1
