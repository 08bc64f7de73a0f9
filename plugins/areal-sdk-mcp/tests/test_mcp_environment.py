"""The environment `mcp`: real servers, the real gateway, scripted models."""

import importlib
import sys
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from areal_sdk import ConfigError, Environment, Episode, Task
from areal_sdk.testing import check_environment, registered, run_agent, tool_call
from areal_sdk_mcp.environment import SHARED, McpEnvironment

EXAMPLES = Path(__file__).parents[1] / "examples"
CALCULATOR = f"{sys.executable} {Path(__file__).parent / 'servers' / 'calculator.py'}"
TASK = Task("t", {"question": "How much is 2+3?", "answer": "5"})


@pytest.fixture(autouse=True)
async def no_servers_are_left() -> AsyncIterator[None]:
    yield
    await SHARED.aclose()


def made(**options: object) -> Callable[[], Environment]:
    return partial(McpEnvironment, command=CALCULATOR, start_timeout_s=60.0, **options)  # type: ignore[arg-type]


async def play(make: Callable[[], Environment], *replies: str) -> Episode:
    class Played(McpEnvironment):
        def __new__(cls) -> Environment:  # type: ignore[misc]
            return make()

    return await run_agent(Played, TASK, engine=list(replies), reward=says_five)


def says_five(episode: Episode) -> float:
    return float("5" in episode.final_text)


async def test_a_model_uses_the_tools_and_answers() -> None:
    episode = await play(made(), tool_call("add", a=2, b=3), "5")
    assert episode.reward == 1.0
    assert [turn.parent for turn in episode.turns] == [None, 0]


async def test_a_server_that_dies_under_an_episode_is_no_zero() -> None:
    episode = await play(made(), tool_call("die"), "5")
    assert episode.reward is None
    assert episode.outcome.error == "infrastructure"
    assert "out of tea" in episode.outcome.message


async def test_the_environment_keeps_its_contract() -> None:
    await check_environment(made(stateless=True), TASK, replies=["5"])


async def test_an_episode_ends_after_its_turns() -> None:
    episode = await play(made(max_turns=1), tool_call("add", a=2, b=3))
    assert len(episode.turns) == 1


@pytest.mark.parametrize(("stateless", "counts"), [(True, ["1", "2"]), (False, ["1", "1"])])
async def test_only_what_keeps_nothing_is_shared(stateless: bool, counts: list[str]) -> None:
    found = []
    for _ in range(2):
        environment = made(stateless=stateless)()
        await environment.reset(TASK)
        function = {"name": "count", "arguments": "{}"}
        call = {"id": "c", "type": "function", "function": function}
        answer = await environment.step({"role": "assistant", "tool_calls": [call]})
        found.append(answer.messages[0]["content"])
        await environment.close()
    assert found == counts


async def test_a_shared_server_that_was_lost_is_started_again() -> None:
    lost = await play(made(stateless=True), tool_call("die"), "5")
    assert lost.outcome.error == "infrastructure"
    assert (await play(made(stateless=True), tool_call("add", a=2, b=3), "5")).reward == 1.0


def test_the_plugin_is_installed_and_its_options_are_checked() -> None:
    registered("env", "mcp", url="http://127.0.0.1:1/mcp")()
    with pytest.raises(ConfigError, match="give the command that starts an MCP server"):
        registered("env", "mcp")()


async def test_the_example_asks_for_sums_that_its_server_adds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    sums = importlib.import_module("sums")
    task = next(sums.tasks("eval"))
    replies = [tool_call("add", a=50, b=51), "101"]
    episode = await run_agent(sums.Sums, task, engine=replies, reward=lambda episode: 1.0)
    assert episode.turns[1].new_messages[-1]["content"] == "101"
    trained, held_out = ({t.data["answer"] for t in sums.tasks(s)} for s in ("train", "eval"))
    assert not trained & held_out
