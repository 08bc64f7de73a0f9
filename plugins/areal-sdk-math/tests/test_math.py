"""Answers are read where they are marked, and compared by meaning."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from areal_sdk import ConfigError, EpisodeError
from areal_sdk.testing import check_reward, make_episode, registered
from areal_sdk_math.answers import last_boxed, last_number, same_answer
from areal_sdk_math.gsm8k import tasks
from areal_sdk_math.rewards import boxed_answer, final_number, hash_answer, math_answer
from areal_sdk_math.verifier import Comparison, Verifier


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
        (r"-\frac{1}{2}", "-0.5"),
        ("\u22125", "-5"),
        ("50%", "50"),
        (r"50\%", "50"),
        ("50%", "0.5"),
        (r"1,\!234,\!567", "1234567"),
        ("1\u202f234", "1,234"),
        ("1,000 apples", "1000 apples"),
        ("3,400", "3, 400"),
        ("(1,100)", "(1, 100)"),
    ],
)
def test_answers_that_mean_the_same_are_equal(said: str, expected: str) -> None:
    assert same_answer(said, expected)


@pytest.mark.parametrize(
    ("said", "expected"),
    [("12", "1.2"), ("1/0", "1"), ("", "0"), ("x", "y"), ("1,23", "123"), ("(1,100)", "1100"),
     (r"\{1,100\}", "1100"), ("[3, 400]", "3400"), ("1, 234", "1234"), ("1,2,345", "12345"),
     ("\u22125", "5"), ("50%", "50.5"), ("50%", "5000"), (r"2\frac{1}{2}", "21/2")],
)  # fmt: skip
def test_answers_that_do_not_are_not(said: str, expected: str) -> None:
    assert not same_answer(said, expected)


@pytest.mark.parametrize(
    ("text", "number"),
    [("the pair (3,4)", "4"), ("either 5,10", "10"), ("1,2,3", "3"), ("12,34", "34"),
     ("1234,567", "567"), ("1,234,56", "56"), ("10,1,234", "234"), ("so 1,234,567.50.", "1,234,567.50"),
     ("1\u2009234 or 1\u202f234", "1\u202f234"), ("5\u00a0000", "5\u00a0000"), ("1 000", "000"),
     ("it is \u22125", "\u22125"), (r"$50\%$", r"50\%"), ("5,-3", "-3"), ("2\u22123", "3")],
)  # fmt: skip
def test_the_last_number_of_a_list_is_not_its_first(text: str, number: str) -> None:
    assert last_number(text) == number


def test_a_percentage_is_the_number_that_was_asked_for() -> None:
    assert final_number(make_episode("So it is 50%.", data={"answer": "50"})) == 1.0


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


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (r"\frac{1}{\sqrt{2}}", r"\frac{\sqrt{2}}{2}"),
        ("(x+1)^2", "x^2+2x+1"),
        (r"\{1, 2\}", r"\{2, 1\}"),
        (r"2\pi", r"\pi \cdot 2"),
    ],
)
def test_math_verify_sees_that_expressions_are_equal(said: str, expected: str) -> None:
    right, wrong = (
        make_episode(rf"\boxed{{{text}}}", data={"answer": expected}) for text in (said, "41")
    )
    assert (math_answer(right), math_answer(wrong)) == (1.0, 0.0)


@pytest.mark.parametrize(
    "said", ["9^{9^{9^{9^{9}}}}", "(" * 3000 + "1" + ")" * 3000, "10^{10^{10}}!"]
)
def test_an_expression_that_explodes_is_wrong_and_the_next_one_is_judged(said: str) -> None:
    verifier = Verifier(timeout_s=2.0, memory_mb=256)
    try:
        assert verifier.compare(said, "x") is not Comparison.SAME
        assert verifier.compare("y + x", "x + y") is Comparison.SAME
    finally:
        verifier.close()


class Disturbed(Verifier):
    """A verifier whose process gets a signal between the two questions of a comparison, `times`
    times."""

    def __init__(self, disturbance: signal.Signals, times: int) -> None:
        super().__init__(timeout_s=1.0, memory_mb=256)
        self.disturbance = disturbance
        self.left = times

    def _ask(self, question: dict[str, str]) -> Any:
        if "said" in question and self.left:
            self.left -= 1
            process = self._process or self._start()
            process.send_signal(self.disturbance)
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        return super()._ask(question)


@pytest.mark.parametrize("disturbance", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stalled"])
def test_a_fresh_process_judges_where_the_machine_ended_one(disturbance: signal.Signals) -> None:
    verifier = Disturbed(disturbance, times=1)
    try:
        assert verifier.compare("y + x", "x + y") is Comparison.SAME
        assert verifier.left == 0
    finally:
        verifier.close()


def test_a_process_that_is_killed_twice_is_a_fault_of_the_machine_and_no_zero() -> None:
    verifier = Disturbed(signal.SIGKILL, times=2)
    try:
        with pytest.raises(EpisodeError, match="gave no verdict, twice") as raised:
            verifier.compare("y + x", "x + y")
        assert raised.value.kind == "infrastructure"
        assert verifier.compare("y + x", "x + y") is Comparison.SAME
    finally:
        verifier.close()


def test_an_expected_answer_that_takes_too_much_is_an_error_of_the_data() -> None:
    verifier = Verifier(timeout_s=0.5, memory_mb=256)
    try:
        with pytest.raises(ValueError, match="cannot be read within"):
            verifier.compare("x", "(" * 3000 + "1" + ")" * 3000)
    finally:
        verifier.close()


async def test_the_rewards_of_numbers_and_expressions_keep_the_contract() -> None:
    data = {"answer": "#### 1,250"}
    numbers = [make_episode(text, data=data) for text in ("so 3 cost $1,250.", "1250 of 7", "no")]
    assert [v.reward for v in await check_reward(final_number, numbers)] == [1.0, 0.0, 0.0]
    boxed = [make_episode(text, data={"answer": "x^2"}) for text in (r"\boxed{x \cdot x}", "x^2")]
    assert [v.reward for v in await check_reward(math_answer, boxed)] == [1.0, 0.0]


def test_gsm8k_is_read_from_files(tmp_path: Path) -> None:
    row = {"question": "2 + 2?", "answer": "2 + 2 = <<2+2=4>>4\n#### 4"}
    (tmp_path / "test.jsonl").write_text((json.dumps(row) + "\n") * 3)
    found = list(registered("dataset", "gsm8k", source=str(tmp_path), limit=2)("eval"))
    assert [task.id for task in found] == ["gsm8k-test-0", "gsm8k-test-1"]
    assert found[0].data == {"question": "2 + 2?", "answer": "4", "solution": row["answer"]}


@pytest.mark.parametrize(
    ("line", "problem"),
    [("{", "line 1: not valid JSON"), ("[]", "not an object"), ("{}", "no answer and no question"),
     ('{"question": "", "answer": "4"}', "has no ####")],
)  # fmt: skip
def test_rows_that_are_not_gsm8k_are_named(tmp_path: Path, line: str, problem: str) -> None:
    (tmp_path / "train.jsonl").write_text(line)
    with pytest.raises(ConfigError, match=problem):
        list(tasks("train", source=str(tmp_path)))


def test_gsm8k_without_its_file_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no .*train\.jsonl"):
        list(tasks("train", source=str(tmp_path)))
