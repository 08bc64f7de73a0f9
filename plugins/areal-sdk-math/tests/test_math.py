"""Answers are read where they are marked, and compared by meaning."""

import time

import pytest

from areal_sdk.testing import check_reward, make_episode, registered
from areal_sdk_math.answers import last_boxed, same_answer
from areal_sdk_math.rewards import boxed_answer, hash_answer


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (r"\boxed{7}", "7"),
        (r"\boxed {7}", "7"),
        (r"\boxed{\text{a \{b\}}}", r"\text{a \{b\}}"),
        (r"first \boxed{1} then \boxed{2} and cut \boxed{3", "2"),
        ("no box", None),
        (r"\boxed{}", ""),
    ],
)
def test_the_last_complete_box_counts(text: str, content: str | None) -> None:
    assert last_boxed(text) == content


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("1,234", "1234"),
        ("0.50", "1/2"),
        (r"\dfrac{3}{4}", "0.75"),
        (r"50\%", "0.5"),
        ("$42$", "42"),
        (r"\text{Yes}", "yes"),
        ("-.5", "-0.5"),
        ("7.", "7"),
        (r"\left(1, 2\right)", "(1,2)"),
    ],
)
def test_answers_that_mean_the_same_are_equal(said: str, expected: str) -> None:
    assert same_answer(said, expected)


@pytest.mark.parametrize(
    ("said", "expected"), [("12", "1.2"), ("1/0", "1"), ("", "0"), ("x", "y"), ("1,23", "123")]
)
def test_answers_that_do_not_are_not(said: str, expected: str) -> None:
    assert not same_answer(said, expected)


async def test_the_rewards_keep_the_contract() -> None:
    data = {"answer": "steps #### 72"}
    boxed = [make_episode(r"\boxed{72}", data=data), make_episode(r"\boxed{71}", data=data)]
    verdicts = await check_reward(boxed_answer, boxed, options={"partial_credit": 0.1})
    assert [v.reward for v in verdicts] == [1.0, 0.1]
    hashed = [make_episode("so\n#### 72\n", data=data), make_episode("72", data=data)]
    assert [v.reward for v in await check_reward(hash_answer, hashed)] == [1.0, 0.0]


def test_a_task_without_an_answer_is_an_error_and_not_a_zero() -> None:
    with pytest.raises(ValueError, match=r"no data\['answer'\]"):
        boxed_answer(make_episode(r"\boxed{1}", data={"solution": "1"}))


@pytest.mark.parametrize("text", [r"\boxed{" * 3000, "9" * 100_000, r"\frac{" * 3000, "{" * 50_000])
def test_hostile_text_costs_little(text: str) -> None:
    began = time.process_time()
    boxed_answer(make_episode(r"\boxed{" + text + "}", data={"answer": "1"}))
    assert time.process_time() - began < 2.0


def test_the_plugin_is_installed_and_registers_both() -> None:
    assert registered("reward", "hash_answer") is hash_answer
    reward = registered("reward", "boxed_answer", field="gold")
    assert reward(make_episode(r"\boxed{3}", data={"gold": 3})) == 1.0
