"""An agent's imports may install uvloop: runs do on it what they do on asyncio's own loop."""

import signal
from pathlib import Path

import pytest

from tests.loop.runs import finish, run_dir, start_command, start_training, told

AGENT = '''
import asyncio, time
import uvloop
import areal_sdk
from areal_sdk import Agent, Task

uvloop.install()

class Chatter(Agent):
    """Plays on uvloop, through both doors."""

    async def run(self, task, context):
        assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
        await context.generate([{"role": "user", "content": "go"}], max_new_tokens=8)
        answer = await context.http_client.post(
            context.base_url + "/chat/completions",
            json={"model": context.model, "messages": [{"role": "user", "content": "a"}], "max_tokens": 8},
            headers={"Authorization": f"Bearer {context.api_key}"},
        )
        answer.raise_for_status()

class Blocking(Agent):
    async def run(self, task, context):
        await asyncio.create_task(self.think())

    async def think(self):
        time.sleep(3600)  # it blocks

@areal_sdk.hookimpl
def register_rewards(register):
    register("letters", letters)

def letters(episode):
    return sum(token < 128 for turn in episode.turns for token in turn.output_tokens) / 16

def tasks(split):
    for index in range(16):
        yield Task(f"{split}-{index}")
'''


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    path = tmp_path / "chatter.py"
    path.write_text(AGENT)
    return path


def rewarded(agent: Path) -> tuple[str, ...]:
    return ("--plugin", str(agent), "--set", "rewards.letters=1.0")


@pytest.mark.long
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_trains(tmp_path: Path, agent: Path, workers: int) -> None:
    training = start_training(
        tmp_path,
        *rewarded(agent),
        agent=Path(f"{agent}::Chatter"),
        run__steps=1,
        rollout__workers=workers,
    )
    assert "blocked the event loop" not in finish(training)
    assert [row["step"] for row in run_dir(tmp_path).read_metrics(kind="step")] == [1]


def test_an_evaluation_ends(agent: Path, parts: tuple[str, ...]) -> None:
    arguments = ("--model", "tiny", *rewarded(agent), *parts)
    evaluation = start_command("eval", f"{agent}::Chatter", *arguments)
    assert "16 episodes" in finish(evaluation)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_an_agent_that_blocks_is_named_and_ctrl_c_ends_it(
    tmp_path: Path, agent: Path, workers: int, parts: tuple[str, ...]
) -> None:
    line = 1 + AGENT.partition("# it blocks")[0].count("\n")
    run = start_training(
        tmp_path,
        *parts,
        agent=Path(f"{agent}::Blocking"),
        rollout__workers=workers,
        rollout__tool_timeout_s=4.0,
    )
    assert run.stdout is not None
    assert told(run.stdout, rf"(Blocking\.think) \({agent}:{line}")
    run.send_signal(signal.SIGINT)
    output = finish(run, code=1)
    assert "Traceback" not in output
    assert f"areal-sdk train --resume {tmp_path / 'run'}" in output, "it unwound"
