"""A library that plays in another Python: its tasks, its episodes, its end."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from areal_sdk import Agent, ConfigError, Episode, EpisodeContext, Outcome, Task
from areal_sdk.testing import run_agent
from areal_sdk_shared import Library, check_share

SCRIPT = Path(__file__).parent / "servers" / "echo.py"


@pytest.fixture
async def echo() -> AsyncIterator[Library]:
    library = Library(
        "echo",
        title="Echo",
        script=SCRIPT,
        modules=("no_such_module",),
        requirements=("pip", "setuptools"),
    )
    yield library
    await library.aclose()


async def play(library: Library, word: str) -> Episode:
    class Echo(Agent):
        async def run(self, task: Task, context: EpisodeContext) -> Outcome | None:
            return await library.play({"word": word}, context, python=sys.executable)

    return await run_agent(Echo(), Task("a"), engine=[])


async def process_of(library: Library, word: str) -> float:
    return (await play(library, word)).outcome.metrics["process"]


def test_tasks_are_those_that_the_library_lists(echo: Library) -> None:
    listed = echo.tasks(sys.executable, {"words": ["one", "two"]}, what="words", path=["/here"])
    assert [told["key"] for told in listed] == ["one", "two"]
    assert listed[0]["path"].split(":")[0] == "/here"
    with pytest.raises(ConfigError, match=r"words cannot be listed by .*: there are no words"):
        echo.tasks(sys.executable, {"words": []}, what="words")


def test_a_share_of_the_tasks_is_held_out_by_content(echo: Library) -> None:
    keys = [f"task {n}" for n in range(1000)]
    held_out = [key for key in keys if echo.is_held_out(key, 0.2)]
    assert 150 < len(held_out) < 250
    assert held_out == [key for key in reversed(keys) if echo.is_held_out(key, 0.2)][::-1]
    assert not any(echo.is_held_out(key, 0.0) for key in keys)
    assert all(echo.is_held_out(key, 1.0) for key in keys)
    with pytest.raises(ConfigError, match=r"held_out = 1\.5: give a share"):
        check_share(1.5)


async def test_the_verdict_is_that_of_the_library(echo: Library) -> None:
    assert (await play(echo, "four")).reward == 4.0
    assert (await play(echo, "abstain")).reward is None
    assert "Echo: no such word" in (await play(echo, "fail")).outcome.message


async def test_episodes_share_a_process_and_one_that_dies_is_replaced(echo: Library) -> None:
    both = await asyncio.gather(process_of(echo, "one"), process_of(echo, "three"))
    assert both[0] == both[1]
    said = (await play(echo, "die")).outcome.message
    assert "the process of Echo ended; it wrote: last words" in said
    assert await process_of(echo, "one") != both[0]


async def test_a_fork_that_dies_is_an_error_of_its_episode_alone(echo: Library) -> None:
    first = await process_of(echo, "one")
    assert "the fork died" in (await play(echo, "fork")).outcome.message
    assert await process_of(echo, "one") == first


async def test_a_process_that_has_played_enough_ends_its_last_episodes(echo: Library) -> None:
    echo.most_episodes = 2
    waiting = asyncio.create_task(play(echo, "wait"))
    await asyncio.sleep(0)
    first = await process_of(echo, "one")
    assert await process_of(echo, "one") != first
    assert not waiting.done()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_a_cancelled_episode_is_said_to_the_process(echo: Library) -> None:
    player = await echo.player(sys.executable)
    waiting = asyncio.create_task(player.play({"word": "wait"}))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert "cancelled 0" in (await play(echo, "die")).outcome.message


def test_a_python_that_is_named_must_be_there(echo: Library) -> None:
    assert echo.python(sys.executable) == sys.executable
    with pytest.raises(ConfigError, match=r"\[tasks.echo\] python = '/no/such': there is no such"):
        echo.python("/no/such")


def test_a_library_that_is_installed_needs_no_other_python() -> None:
    asyncio_itself = Library(
        "here", title="Here", script=SCRIPT, modules=("asyncio",), requirements=("here==1",)
    )
    assert asyncio_itself.python("") == sys.executable


@pytest.mark.long
def test_a_virtual_environment_is_made_once(
    echo: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    made = Path(echo.python(""))
    assert made.is_relative_to(tmp_path / "share" / "areal-sdk-echo")
    created = made.lstat().st_mtime_ns
    assert echo.python("") == str(made)
    assert made.lstat().st_mtime_ns == created
    with pytest.raises(
        ConfigError, match=r"or name a Python that has Echo \(\[tasks.echo\] python"
    ):
        echo.python("", ["/no/such/wheel.whl"])
