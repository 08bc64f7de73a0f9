"""The Python tool tells what a program wrote, and keeps nothing."""

import pytest

from areal_sdk import Task
from areal_sdk.testing import assistant, check_environment, run_agent, tool_call
from areal_sdk_code import PythonTool
from areal_sdk_code.environment import PythonToolEnvironment
from areal_sdk_sandbox import Limits

TASK = Task("t", {"question": "What is 12 * 12?"})


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("print(6 * 7)", "42"),
        ("x = 1", "[it printed nothing]"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("import os; os._exit(3)", "[exit code 3, and it printed nothing]"),
        (
            "print('a', flush=True)\nwhile True: pass",
            "a\n[ended at its cpu limit of 1 s of CPU time]",
        ),
        ("print('x' * 5000)", "[the end of 5000 characters]\n" + "x" * 2000),
    ],
)
async def test_the_answer_says_what_happened(code: str, answer: str) -> None:
    tool = PythonTool(Limits(wall_s=120.0, cpu_s=1.0))
    assert (await tool.call({"code": code})).endswith(answer)


async def test_nothing_is_kept_between_calls() -> None:
    tool = PythonTool()
    for _ in range(2):
        assert await tool.call({"code": "open('kept', 'x')"}) == "[it printed nothing]"


@pytest.mark.parametrize("arguments", ["", "{not json", "[1]", '{"code": 1}', "(" * 100_000])
async def test_arguments_that_are_none_are_answered(arguments: str) -> None:
    assert (await PythonTool().call(arguments)).startswith("error: call run_python with")


async def test_a_model_plays_the_environment_through_the_gateway() -> None:
    replies = [tool_call("run_python", code="print(12 * 12)"), "144"]
    episode = await run_agent(PythonToolEnvironment, TASK, engine=replies)
    assert [message["content"] for message in episode.messages if message["role"] == "tool"] == [
        "144"
    ]


async def test_the_environment_keeps_the_contract_and_ends_its_calls() -> None:
    call = assistant(None, ("run_python", {"code": "print(1)"}))
    wrong = assistant(None, ("rm", {}))
    steps = await check_environment(
        lambda: PythonToolEnvironment(max_calls=1), TASK, replies=[wrong, call, call, "1"]
    )
    said = [step.messages[0]["content"] for step in steps[:3]]
    assert said == [
        "error: the only tool is run_python",
        "1",
        "error: no calls are left: answer now",
    ]
    assert steps[-1].done
