"""The smaller examples do what their first lines say."""

import json
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType

import pytest

from areal_sdk.process.user_code import load_user_module
from areal_sdk.testing import check_workflow, run_agent, tool_call

EXAMPLES = Path(__file__).parents[2] / "examples" / "agents"


def load(name: str) -> ModuleType:
    return load_user_module(EXAMPLES / f"{name}.py")


@pytest.mark.parametrize(("said", "reward"), [("The answer is 7.", 1.0), ("8", 0.0), ("", 0.0)])
async def test_an_agent_with_areals_signature_runs_as_it_is(said: str, reward: float) -> None:
    data = {"messages": [{"role": "user", "content": "3+4?"}], "answer": "7"}
    episode = await run_agent(load("areal_style").Arithmetic, data, engine=said)
    assert episode.reward == reward


async def test_a_workflow_rewards_each_turn() -> None:
    module = load("second_look")
    task = {"question": "abcd backwards", "answer": "dcba"}
    better = await check_workflow(module.SecondLook, task, replies=["abcd", "dcba"])
    assert better.outcome.turn_rewards == (0.0, 1.0)
    worse = await run_agent(module.SecondLook, task, engine=["dcba", "abcd"])
    assert worse.outcome.turn_rewards == (1.0, -1.0)
    assert (worse.reward, worse.outcome.success) == (0.0, False)


@pytest.mark.parametrize(
    ("said", "reward", "at_once"),
    [(["7"], 1.0, 1.0), (["6", "It is 7."], 0.5, 0.0), (["", "no", "8"], 0.0, 0.0)],
    ids=str,
)
async def test_a_later_right_answer_is_worth_less(
    said: list[str], reward: float, at_once: float
) -> None:
    agent = load("math_with_retries").MathWithRetries
    episode = await run_agent(agent, {"question": "3+4", "answer": "7"}, engine=said)
    assert episode.reward == reward
    assert episode.outcome.metrics == {"right_at_once": at_once}
    assert [turn.parent for turn in episode.turns] == [None, 0, 1][: len(said)]


async def test_a_sum_without_a_number_in_its_answer_is_an_error_and_not_solved() -> None:
    agent = load("math_with_retries").MathWithRetries
    task = {"question": "Which colour?", "answer": "blue"}
    outcome = (await run_agent(agent, task, engine="no idea")).outcome
    assert (outcome.kind, outcome.reward) == ("error", None)
    assert "no number in its answer 'blue'" in outcome.message


def test_a_list_of_numbers_is_not_one_number() -> None:
    last_number = load("math_with_retries").last_number
    found = [last_number(text) for text in ("1,2,3", "1234,567", "1,234,56", "$1,234,567.5.")]
    assert found == [3.0, 567.0, 56.0, 1234567.5]


@pytest.mark.parametrize("guess", ["²", "٣", "x", "12", ""])
def test_a_guess_that_is_no_digit_is_told_so(guess: str) -> None:
    assert load("guess_number").hint(guess, 3) == "one digit"


async def test_an_answer_is_looked_up_in_the_index() -> None:
    module = load("retrieval")
    task = next(module.tasks("eval"))
    query = " ".join(task.data["question"].split()[3:5])
    replies = [tool_call("search", query=query), task.data["answer"]]
    episode = await run_agent(module.Retrieval, task, engine=replies)
    assert (episode.reward, episode.outcome.success) == (1.0, True)
    guessed = await run_agent(module.Retrieval, task, engine=task.data["answer"])
    assert (guessed.reward, guessed.outcome.success) == (0.0, False)
    lost = await run_agent(module.Retrieval, task, engine=[tool_call("search", query="''"), "?"])
    assert (lost.reward, lost.outcome.success) == (0.0, False)


def test_every_document_is_found_by_its_question() -> None:
    module = load("retrieval")
    for task in (*module.tasks("train"), *module.tasks("eval")):
        query = json.dumps({"query": task.data["question"]})
        assert module.search(query) == task.data["document"]


@pytest.mark.parametrize(
    ("said", "reward"),
    [
        (["def f(a,b):return a+b"], 1.0),
        (["def f(a,b):return a*b", "So:\n```python\ndef f(a,b): return a+b\n```"], 0.8),
        (["def f(a,b):return a*b", "import os; os._exit(0)"], 0.0),
        (["nonsense", "while True: pass"], 0.0),
    ],
    ids=["at once", "then", "an exit", "nonsense"],
)
async def test_a_function_is_mended_until_its_tests_pass(said: list[str], reward: float) -> None:
    agent = partial(load("code_fixer").CodeFixer, wall_s=1.0)
    task = {"question": "def f(a,b):return a-b", "tests": ["assert f(2, 3) == 5"]}
    episode = await run_agent(agent(), task, engine=said)
    assert episode.reward == reward, episode.outcome


async def test_a_value_copied_from_the_question_mends_no_function() -> None:
    module = load("code_fixer")
    judge = module.Judge(module.Limits(wall_s=60.0))
    task = next(iter(module.tasks("eval")))
    value = task.data["question"].rsplit("=", 1)[1]
    assert (await judge.judge(f"def f(a,b):return {value}", task.data["tests"])).num_passed == 0
    operators = [f"def f(a,b):return a{operator}b" for operator in module.OPERATORS]
    passed = [(await judge.judge(code, task.data["tests"])).passed for code in operators]
    assert passed.count(True) == 1


@pytest.mark.parametrize("name", sorted(path.stem for path in EXAMPLES.glob("*.py")))
def test_splits_are_stable_and_ids_unique(name: str) -> None:
    module = load(name)
    for split in ("train", "eval"):
        first = list(islice(module.tasks(split), 500))
        assert first == list(islice(module.tasks(split), 500))
        assert len({task.id for task in first}) == len(first)
