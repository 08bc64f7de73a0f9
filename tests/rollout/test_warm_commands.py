"""Commands that are kept: one process plays episode after episode, a line for each."""

import asyncio
import shlex
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from areal_sdk.errors import ConfigError
from areal_sdk.rollout.agents.command import CommandAgent
from areal_sdk.rollout.agents.runner import EpisodeRunner
from areal_sdk.testing import ScriptedEngine
from areal_sdk.types import Episode, ErrorKind, OutcomeKind
from tests.rollout.playing import PLAN, serving
from tests.toolbox.processes import is_alive

LOOP = """
    import json, os, sys, time, urllib.request
    assert os.environ["AREAL_SDK_WARM"] == "1"
    def chat(order, text):
        body = {"model": order["model"], "messages": [{"role": "user", "content": text}]}
        headers = {"Content-Type": "application/json", "Authorization": "Bearer " + order["api_key"]}
        url = order["openai_base_url"] + "/chat/completions"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        answer = json.load(urllib.request.urlopen(request))
        return answer["choices"][0]["message"]["content"]
    def answer(order, **verdict):
        print(json.dumps({"episode": order["episode"], **verdict}), flush=True)
    for line in sys.stdin:
        order = json.loads(line)
"""


@asynccontextmanager
async def runner_of(
    body: str, model_dir: Path, *, said: int = 20, **options: float
) -> AsyncIterator[EpisodeRunner]:
    """Plays with a warm Python program whose loop over orders has this body."""
    program = textwrap.dedent(LOOP) + textwrap.indent(textwrap.dedent(body), "    ")
    agent = CommandAgent(f"{sys.executable} -c {shlex.quote(program)}", warm=True)
    agent.keep_output(model_dir / "logs")
    engine = ScriptedEngine(["4"] * said, model_dir=model_dir)
    try:
        async with serving(agent, engine, model_dir, infra_retries=0, **options) as runner:
            yield runner
    finally:
        await agent.aclose()


async def play(runner: EpisodeRunner, number: int = 0) -> Episode:
    return await runner.run(replace(PLAN, id=f"task.0.{number}"))


async def test_one_process_plays_one_episode_after_another(model_dir: Path) -> None:
    body = """
        print("thinking about", order["id"])
        right = chat(order, order["data"]["question"]) == order["data"]["answer"]
        answer(order, reward=float(right), metrics={"pid": os.getpid()})
    """
    async with runner_of(body, model_dir) as runner:
        episodes = [await play(runner, number) for number in range(3)]
    assert [episode.reward for episode in episodes] == [1.0] * 3
    assert [len(episode.turns) for episode in episodes] == [1] * 3
    assert len({episode.outcome.metrics["pid"] for episode in episodes}) == 1
    log = (model_dir / "logs" / "agent.log").read_text()
    assert log.count("thinking about task") == 3
    assert "--- task.0.1: answered" in log


async def test_episodes_side_by_side_have_a_process_each(model_dir: Path) -> None:
    body = """
        chat(order, "?")
        answer(order, reward=1, metrics={"pid": os.getpid()})
    """
    async with runner_of(body, model_dir) as runner:
        both = await asyncio.gather(*(play(runner, number) for number in range(2)))
        later = await play(runner, 2)
    pids = [episode.outcome.metrics["pid"] for episode in both]
    assert len(set(pids)) == 2
    assert later.outcome.metrics["pid"] in pids


async def test_an_answer_names_its_episode(model_dir: Path) -> None:
    body = """
        print(json.dumps({"reward": 0.0}))
        print(json.dumps({"episode": "another", "reward": 0.0}))
        answer(order, reward=0.5)
    """
    async with runner_of(body, model_dir) as runner:
        assert (await play(runner)).reward == 0.5


async def test_an_answer_without_a_reward_is_no_zero(model_dir: Path) -> None:
    async with runner_of("answer(order)", model_dir) as runner:
        assert (await play(runner)).outcome.kind is OutcomeKind.ABSTAIN


@pytest.mark.parametrize(
    ("body", "error", "message"),
    [
        ('answer(order, error="the tool is gone")', ErrorKind.AGENT, "the tool is gone"),
        ('answer(order, reward="high")', ErrorKind.AGENT, "a number or null is a reward"),
        ("raise ValueError('oh no')", ErrorKind.AGENT, "exit code 1: ValueError: oh no"),
        ("break", ErrorKind.AGENT, "it ended before it had answered"),
        ("os.kill(os.getpid(), 9)", ErrorKind.INFRASTRUCTURE, "killed by SIGKILL"),
    ],
)
async def test_a_failure_costs_one_episode(
    body: str, error: ErrorKind, message: str, model_dir: Path
) -> None:
    failing = (
        "if order['episode'].endswith('.0'):\n    " + body + "\nelse:\n    answer(order, reward=1)"
    )
    async with runner_of(failing, model_dir) as runner:
        failed = await play(runner, 0)
        assert failed.outcome.error is error
        assert message in failed.outcome.message
        assert (await play(runner, 1)).reward == 1.0


async def test_a_late_command_is_ended_and_replaced(model_dir: Path) -> None:
    body = """
        if order["episode"].endswith(".0"):
            print("pid", os.getpid(), flush=True)
            time.sleep(600)
        answer(order, reward=1)
    """
    async with runner_of(body, model_dir, episode_timeout_s=8.0) as runner:
        late = await play(runner, 0)
        assert late.outcome.error is ErrorKind.TIMEOUT
        assert (await play(runner, 1)).reward == 1.0
    log = (model_dir / "logs" / "agent.log").read_text()
    assert not is_alive(int(log.partition("pid ")[2].split()[0]))


async def test_a_line_without_an_end_is_read_in_good_time(model_dir: Path) -> None:
    body = """
        print("x" * 8_000_000)
        answer(order, reward=1)
    """
    async with runner_of(body, model_dir) as runner:
        assert (await play(runner)).reward == 1.0


async def test_what_waits_is_ended_with_all_that_it_started(model_dir: Path) -> None:
    body = """
        import subprocess
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        answer(order, reward=1, metrics={"pid": os.getpid(), "child": child.pid})
    """
    async with runner_of(body, model_dir) as runner:
        metrics = (await play(runner)).outcome.metrics
    assert not is_alive(int(metrics["pid"]))
    assert not is_alive(int(metrics["child"]))


def test_exit_codes_cannot_judge_what_is_kept() -> None:
    with pytest.raises(ConfigError, match="ends once"):
        CommandAgent("true", reward="exit_code", warm=True)
