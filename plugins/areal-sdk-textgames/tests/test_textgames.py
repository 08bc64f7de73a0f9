"""The games keep the environment contract, and can be won, lost and cheated at by nobody."""

from functools import partial

import pytest

from areal_sdk import Message, Task
from areal_sdk.testing import assistant, check_environment, registered, run_agent, tool_call
from areal_sdk_textgames.mastermind import Mastermind, compare, tasks

TASK = Task("t", {"code": "abca", "symbols": "abcd"})


def guess(code: str) -> Message:
    return assistant(None, ("guess", {"code": code}))


async def test_a_game_is_won_by_the_code() -> None:
    steps = await check_environment(
        Mastermind, TASK, replies=[guess("aabb"), guess("xyz"), "hm", guess("abca")]
    )
    said = [step.messages[0]["content"] for step in steps]
    assert said[0] == "1 in place, 2 elsewhere"
    assert said[1].startswith("error: 4 symbols out of")
    assert (steps[-1].reward, steps[-1].success) == (1.0, True)


async def test_a_game_is_lost_after_the_last_guess_and_earns_partial_credit() -> None:
    make = partial(Mastermind, max_guesses=2, partial_credit=0.4)
    steps = await check_environment(make, TASK, replies=[guess("abdd"), guess("dddd")])
    assert (steps[-1].reward, steps[-1].done, steps[-1].success) == (0.2, True, False)


async def test_many_calls_at_once_are_one_guess() -> None:
    every = assistant(None, *(("guess", {"code": c}) for c in ("aaaa", "abca")))
    (step,) = await check_environment(Mastermind, TASK, replies=[every])
    assert not step.done


async def test_a_model_plays_it_through_the_gateway() -> None:
    replies = [tool_call("guess", code="aabb"), tool_call("guess", code="abca")]
    episode = await run_agent(Mastermind, TASK, engine=replies)
    assert (episode.reward, episode.outcome.success) == (1.0, True)
    assert len(episode.turns) == 2


@pytest.mark.parametrize(("guess", "code"), [("abca", "aabb"), ("abcd", "dcba"), ("aaaa", "aaab")])
def test_comparing_is_symmetric(guess: str, code: str) -> None:
    assert compare(guess, code) == compare(code, guess)


def test_train_and_eval_share_no_code() -> None:
    train, held_out = ([task.data["code"] for task in tasks(s)] for s in ("train", "eval"))
    assert not set(train) & set(held_out)
    assert len(train) + len(held_out) == 4**3


def test_the_plugin_is_installed_and_its_options_are_checked() -> None:
    assert registered("env", "mastermind", max_guesses=3)()
    assert next(iter(registered("dataset", "mastermind", length=2)("train"))).id
