"""Environments in words: what is seen, what is understood, what is refused."""

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from areal_sdk import ConfigError, Task
from areal_sdk.testing import check_environment, check_plugin, registered, run_agent
from areal_sdk_gymnasium.datasets import frozen_lake_maps, tasks
from areal_sdk_gymnasium.environment import GymnasiumText
from areal_sdk_gymnasium.spaces import actions_of, describe

LAKE = Task("lake", {"id": "FrozenLake-v1", "arguments": {"is_slippery": False}, "seed": 0})
WAY = ("down", "down", "I go right.", "2", "Down", "right")


class Talk(gymnasium.Env[dict[str, Any], str]):
    """Says a word and wants it back."""

    observation_space = spaces.Dict(
        {"word": spaces.Text(9, min_length=0), "left": spaces.Discrete(4)}
    )
    action_space = spaces.Text(9)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.word = "ab" if self.np_random.random() < 0.5 else "cd"
        return {"word": self.word, "left": 1}, {}

    def step(self, action: str) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        return {"word": "", "left": 0}, float(action == self.word), True, False, {}


@pytest.fixture(autouse=True)
def _talk() -> None:
    if "Talk-v0" not in gymnasium.registry:
        gymnasium.register("Talk-v0", entry_point=Talk)


async def test_a_lake_is_crossed_in_words() -> None:
    steps = await check_environment(GymnasiumText, LAKE, replies=WAY)
    assert [step.reward for step in steps] == [0.0] * 5 + [1.0]
    assert (steps[-1].done, steps[-1].success) == (True, True)
    assert steps[0].messages[0]["content"] == "4"


async def test_a_hole_ends_the_episode_without_success() -> None:
    steps = await check_environment(GymnasiumText, LAKE, replies=["right", "down"])
    assert (steps[-1].reward, steps[-1].done, steps[-1].success) == (0.0, True, False)


async def test_the_picture_is_plain_text_and_shows_the_place() -> None:
    make = partial(GymnasiumText, render=True)
    (step,) = await check_environment(make, LAKE, replies=["right"])
    assert step.messages[0]["content"].splitlines()[-4:] == ["S[F]FF", "FHFH", "FFFH", "HFFG"]


async def test_an_illegal_answer_is_asked_again_or_ends() -> None:
    again = partial(GymnasiumText, illegal_reward=-0.1)
    steps = await check_environment(again, LAKE, replies=["left or right", "jump", "down"])
    assert [step.reward for step in steps] == [-0.1, -0.1, 0.0]
    assert steps[0].messages[0]["content"].endswith("Answer with one of: left, down, right, up.")
    end = partial(GymnasiumText, on_illegal="end")
    (step,) = await check_environment(end, LAKE, replies=["7"])
    assert (step.done, step.success) == (True, False)


@pytest.mark.parametrize("on_illegal", ["again", "end"])
@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("CliffWalking-v1", ("up", "right", "down", "left")),
        ("Taxi-v4", ("south", "north", "east", "west", "pickup", "dropoff")),
        ("Blackjack-v1", ("stick", "hit")),
    ],
)
async def test_nonsense_earns_less_than_the_worst_legal_play(
    name: str, names: tuple[str, ...], on_illegal: str
) -> None:
    generator = random.Random(0)

    async def play(seed: int, answer: Callable[[], str]) -> tuple[float, int]:
        env = GymnasiumText(id=name, on_illegal=on_illegal)  # type: ignore[arg-type]
        await env.reset(Task("t", {"seed": seed}))
        rewards: list[float] = []
        is_over = False
        while not is_over:
            step = await env.step({"role": "assistant", "content": answer()})
            rewards.append(step.reward or 0.0)
            is_over = step.done
        await env.close()
        return sum(rewards), len(rewards)

    nonsense, turns = await play(0, lambda: "hm")
    assert turns == (20 if on_illegal == "again" else 1)
    for seed in range(50):
        legal, steps = await play(seed, lambda: generator.choice(names))
        assert nonsense < legal
        assert nonsense * steps / 20 < legal


async def test_a_world_whose_least_reward_is_unknown_wants_a_reward_of_illegal_answers() -> None:
    with pytest.raises(ConfigError, match="set illegal_reward, in"):
        await GymnasiumText(id="Talk-v0").reset(Task("t", {}))


async def test_the_turns_are_limited() -> None:
    make = partial(GymnasiumText, max_turns=2)
    steps = await check_environment(make, LAKE, replies=["left", "nonsense"])
    assert (steps[-1].done, steps[-1].success) == (True, False)


@pytest.mark.parametrize(
    ("name", "reply", "seen"),
    [
        ("CliffWalking-v1", "up", "You are in row 2, column 0."),
        ("Blackjack-v1", "hit", "Your cards: "),
        ("Taxi-v4", "north", "Passenger: "),
    ],
)
async def test_toy_text_has_rules_and_words(name: str, reply: str, seen: str) -> None:
    (step, *_) = await check_environment(
        GymnasiumText, Task("t", {"id": name, "seed": 3}), replies=[reply]
    )
    assert seen in str(step.messages[0]["content"])


async def test_cliff_walking_is_a_success_at_the_goal() -> None:
    task = Task("t", {"id": "CliffWalking-v1", "seed": 0})
    replies = ["up", *["right"] * 11, "down"]
    steps = await check_environment(GymnasiumText, task, replies=replies)
    assert (steps[-1].success, sum(step.reward or 0 for step in steps)) == (True, -13.0)


async def test_an_environment_of_text_and_dictionaries_is_played_as_it_is() -> None:
    for seed in range(4):
        task = Task("t", {"id": "Talk-v0", "seed": seed})
        talk = partial(GymnasiumText, illegal_reward=0.0)
        opening = await talk().reset(task)
        word = opening[0]["content"].splitlines()[1].removeprefix("word: ")
        (step,) = await check_environment(talk, task, replies=[word])
        assert (step.reward, step.success) == (1.0, True)


async def test_a_model_plays_it_through_the_gateway() -> None:
    episode = await run_agent(GymnasiumText, LAKE, engine=list(WAY))
    assert (episode.reward, episode.outcome.success, len(episode.turns)) == (1.0, True, 6)


def test_spaces_are_described_or_refused() -> None:
    box = spaces.Box(0, 1, shape=(2,))
    assert describe(box, np.array([0.5, 0.25])) == "0.5 0.25"
    assert describe(spaces.Tuple([box, spaces.Discrete(3)]), (np.zeros(2), 2)) == "0 0, 2"
    with pytest.raises(ConfigError, match="at most 64 numbers"):
        describe(spaces.Box(0, 255, shape=(84, 84)), np.zeros((84, 84)))
    several = actions_of(spaces.MultiDiscrete([3, 2]))
    assert np.array_equal(several.read("2 and 1"), [2, 1])
    assert several.read("3 1") is None
    with pytest.raises(ConfigError, match="cannot write an action of Box"):
        actions_of(box)
    with pytest.raises(ConfigError, match="2 names for 4 actions"):
        actions_of(spaces.Discrete(4), ["left", "right"])
    shifted = actions_of(spaces.Discrete(2, start=5))
    assert (shifted.read("6"), shifted.read("1")) == (6, None)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "names no environment"),
        ({"id": "NoSuchWorld-v0"}, "cannot make 'NoSuchWorld-v0'"),
        ({"id": "FrozenLake-v1", "arguments": {"nope": 1}}, "unexpected keyword argument 'nope'"),
    ],
)
async def test_a_world_that_cannot_be_made_is_named(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await GymnasiumText().reset(Task("t", data))
    with pytest.raises(ConfigError, match="no picture as text"):
        await GymnasiumText(render=True).reset(Task("t", {"id": "Blackjack-v1"}))


def test_held_out_maps_are_never_trained_on() -> None:
    train, held_out = ({task.id for task in frozen_lake_maps(s)} for s in ("train", "eval"))
    assert (len(train), len(held_out)) == (1000, 100)
    other_seed = {task.id for task in frozen_lake_maps("train", seed=7, count=300)}
    assert not (train | other_seed) & held_out
    with pytest.raises(ConfigError, match="make size larger"):
        list(frozen_lake_maps("train", size=2))


def test_seeds_of_the_splits_are_apart() -> None:
    train, held_out = (
        {task.data["seed"] for task in tasks(s, id="Taxi-v4", seed=3)} for s in ("train", "eval")
    )
    assert (len(train), len(held_out)) == (1000, 100)
    assert not train & held_out
    with pytest.raises(ConfigError, match="choose a smaller one"):
        next(tasks("train", id="Taxi-v4", seed=10**7))


async def test_the_installed_plugin_keeps_every_contract() -> None:
    options = {"tasks.gymnasium": {"id": "FrozenLake-v1"}}
    assert registered("env", "gymnasium", max_turns=3)()
    assert "environment 'gymnasium'" in await check_plugin("areal-sdk-gymnasium", options=options)
