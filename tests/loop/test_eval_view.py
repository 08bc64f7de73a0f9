"""An evaluation tells that it goes on, in a terminal and in a pipe."""

import io
import logging
import re
import time
from dataclasses import replace

import pytest

from areal_sdk.telemetry.live.terminal import TerminalView
from areal_sdk.telemetry.live.view import EvalView
from areal_sdk.types import Episode, Outcome, Task, Turn
from tests.loop.runs import AGENT, SCRIPTED_ENGINE, finish, start_command
from tests.toolbox.waiting import until

EPISODE = Episode("e", Task("t"), (), Outcome.scored(1.0))


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def view_on(stream: io.StringIO, *, heartbeat_s: float = 3600.0) -> EvalView:
    writer = TerminalView(stream, environ={"NO_COLOR": "1"})
    return EvalView(writer, name="agent on tiny", heartbeat_s=heartbeat_s)


def test_the_rate_of_an_evaluation_is_of_all_the_time_that_it_played(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tokens of a long episode are known at its end, and were sampled in all the time before."""
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    view = EvalView(None, name="agent on tiny")
    view.begin(2)
    now += 40.0
    turn = Turn((), (1,) * 2000, (0.0,) * 2000, (0,) * 2000)
    view.evaluated(replace(EPISODE, turns=(turn,)))
    assert view._live().sampled_per_s == 50.0


async def test_a_terminal_sees_the_start_and_every_episode() -> None:
    terminal = Terminal()
    async with view_on(terminal) as view:
        view.enter("starting: the engine loads tiny")
        await until(lambda: "starting: the engine loads tiny" in terminal.getvalue())
        view.begin(100)
        view.evaluated(EPISODE)
        await until(lambda: "agent on tiny  episode 1/100 " in terminal.getvalue())


async def test_a_warning_does_not_tear_the_view() -> None:
    terminal = Terminal()
    async with view_on(terminal) as view:
        view.begin(9)
        await until(terminal.getvalue)
        logging.getLogger("areal_sdk.rollout").warning("the agent sleeps")
    assert "\x1b[1F\x1b[Jwarning: the agent sleeps\n" in terminal.getvalue()


async def test_a_pipe_hears_of_every_tenth_of_an_evaluation() -> None:
    pipe = io.StringIO()
    async with view_on(pipe) as view:
        view.begin(200)
        for _ in range(200):
            view.evaluated(EPISODE)
    first, *tenths = pipe.getvalue().splitlines()
    assert first.startswith("evaluating agent on tiny: 200 episodes")
    told = [re.match(r"episode (\d+)/200  ", line) for line in tenths]
    assert [found and int(found[1]) for found in told] == list(range(20, 201, 20))


async def test_a_pipe_hears_that_a_slow_evaluation_goes_on() -> None:
    pipe = io.StringIO()
    async with view_on(pipe, heartbeat_s=0.0) as view:
        view.begin(9)
        await until(lambda: "episode 0/9  0:0" in pipe.getvalue())


def test_the_command_tells_on_stderr_and_json_stays_alone() -> None:
    evaluate = ("eval", str(AGENT), "--model", "tiny", "--num-tasks", "4", *SCRIPTED_ENGINE)
    output = finish(start_command(*evaluate))
    assert re.match(
        r"starting: the engine loads tiny  0:\d\d\n"
        r"evaluating \S+ on tiny: 4 episodes at temperature 0  \d:\d\d\n(?:.*\n)*?"
        r"model +success",
        output,
    ), output
    assert finish(start_command(*evaluate, "--json")).startswith("{")
