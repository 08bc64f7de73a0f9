"""Invariants of whole runs, in real processes."""

import os
import re
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from areal_sdk.config import RolloutSection, parse_config
from areal_sdk.flow import FlowRules
from areal_sdk.loop.learning.steps import TrainingLoop, cut_timeout_s, stalled_s, update_timeout_s
from areal_sdk.plugins import load_plugins
from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.callers import CallerTasks
from areal_sdk.telemetry import Ledger, RunDir
from areal_sdk.testing import ScriptedEngine
from areal_sdk.types import WeightUpdate
from tests.loop.runs import (
    DEADLINE_S,
    SCRIPTED,
    SCRIPTED_ENGINE,
    children_of,
    finish,
    run_dir,
    start_training,
    wait_for_steps,
)

EASY_AGENT = """
from areal_sdk import Agent, Task

class Easy(Agent):
    async def run(self, task, context):
        await context.generate([{"role": "user", "content": "a"}], max_new_tokens=4)
        return 1.0

def tasks(split):
    for index in range(64):
        yield Task(f"{split}-{index}")
"""


@pytest.fixture
def easy(tmp_path: Path) -> Path:
    path = tmp_path / "easy.py"
    path.write_text(EASY_AGENT)
    return path


@pytest.mark.parametrize("algorithm", ["grpo", "m2po"])
def test_batches_with_nothing_to_train_raise_the_version_and_end_as_solved(
    tmp_path: Path, easy: Path, algorithm: str
) -> None:
    """`m2po` computes every token of a batch, also where none has an advantage."""
    process = start_training(
        tmp_path,
        *SCRIPTED_ENGINE,
        agent=easy,
        run__steps=100,
        run__max_empty_batches=3,
        algorithm__name=algorithm,
    )
    output = finish(process)
    assert "ended: solved" in output
    assert output.count("no gradient: all rewards of each group are equal (mean 1.000)") == 3
    steps = run_dir(tmp_path).read_steps()
    assert [step["version"] for step in steps] == [1, 2, 3]
    assert all(step["train/num_trained"] == 0 for step in steps) == (algorithm == "grpo")
    assert all(not step.get("train/num_updates") for step in steps)
    assert all(step["batch/uniform_groups"] == 4 for step in steps)
    versions = {episode.version for episode in run_dir(tmp_path).list_episodes()}
    assert versions & {1, 2, 3}, "later episodes were sampled under label-only versions"


LOST_AGENT = """
from areal_sdk import Agent, Task

class Lost(Agent):
    '''Two attempts of four say what they found; the others run into the limit of turns before.'''
    async def run(self, task, context):
        for _ in range(1 + (context.episode_id[-1] in "01")):
            await context.generate([{"role": "user", "content": "a"}], max_new_tokens=4)
        return 1.0

def tasks(split):
    for index in range(64):
        yield Task(f"{split}-{index}")
"""


def test_a_run_is_not_solved_where_only_the_episodes_with_a_reward_succeed(tmp_path: Path) -> None:
    agent = tmp_path / "lost.py"
    agent.write_text(LOST_AGENT)
    settings: dict[str, Any] = {
        "rollout__max_turns": 1,
        "run__max_empty_batches": 3,
        "run__steps": 100,
    }
    output = finish(start_training(tmp_path, *SCRIPTED_ENGINE, agent=agent, **settings))
    assert "ended: stuck" in output
    told = r"\d\d% of the episodes got no reward and count as failures: .* raise rollout.max_turns"
    assert re.search(told, output)
    assert run_dir(tmp_path).read_steps()[-1]["batch/success"] == 1.0


def test_a_run_that_is_already_good_enough_trains_nothing(tmp_path: Path, easy: Path) -> None:
    process = start_training(
        tmp_path, *SCRIPTED, agent=easy, eval__before=True, eval__every=1, eval__stop_at_success=0.9
    )
    output = finish(process)
    assert "nothing to train: success is 1.000 before the first step" in output
    assert "ended: success" in output
    assert run_dir(tmp_path).read_steps() == []


FROZEN_AGENT = """
import os, signal
from pathlib import Path
import areal_sdk
from tests.loop.runs import children_of
from tests.loop.vowels import Vowels, tasks

class Frozen(Vowels):
    pass

@areal_sdk.hookimpl
def on_step(step):
    if step == 1:  # after the step, before its evaluation and its checkpoint
        Path("{hold}").touch()  # a scripted trainer waits
        for trainer in children_of(os.getpid(), "trainer-0"):
            os.kill(trainer, signal.SIGSTOP)
"""


def test_rollouts_go_on_while_an_evaluation_and_a_checkpoint_run(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    agent, hold = tmp_path / "frozen.py", tmp_path / "hold-save"
    agent.write_text(FROZEN_AGENT.format(hold=hold))
    process = start_training(
        tmp_path,
        *parts,
        agent=agent,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
        run__steps=2,
        run__checkpoint_every=1,
        rollout__max_staleness=4,
        eval__every=1,
        eval__tasks=8,
        eval__keep_best=False,
    )
    wait_for_steps(process, tmp_path, 1)
    try:
        run, deadline = run_dir(tmp_path), time.monotonic() + DEADLINE_S
        while True:
            under_1 = [e for e in run.list_episodes() if e.version == 1]
            played = sum(e.split == "train" for e in under_1)
            evaluated = sum(e.split == "eval" for e in under_1)
            if played >= 32 and evaluated == 8:
                break
            assert time.monotonic() < deadline, "rollouts wait for the checkpoint"
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.05)
        assert not (run.checkpoints / "step-000001").exists(), "it was not being written"
    finally:
        hold.unlink(missing_ok=True)
        for trainer in children_of(process.pid, "trainer-0"):
            os.kill(trainer, signal.SIGCONT)
    finish(process)
    assert (run.checkpoints / "step-000002").exists()


FRAGILE_ENGINE = """
import areal_sdk
from areal_sdk.errors import EngineError
from tests.loop.scripted import Babbler
from tests.loop.vowels import Vowels as Agent_, tasks

class Fragile(Babbler):
    async def update_weights(self, update):
        if update.version == 2:
            raise EngineError("version 2 was eaten on the way")
        await super().update_weights(update)

class Player(Agent_):
    pass

@areal_sdk.hookimpl
def register_engines(register):
    register("fragile", Fragile)
"""


def test_weights_that_cannot_be_delivered_end_the_run_with_that_error(tmp_path: Path) -> None:
    agent = tmp_path / "fragile.py"
    agent.write_text(FRAGILE_ENGINE)
    process = start_training(
        tmp_path,
        *SCRIPTED,
        *("--set", "engine.name=fragile"),
        agent=agent,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )
    output = finish(process, code=1)
    assert "error: version 2 was eaten on the way" in output
    assert "internal error" not in output


async def test_the_gate_opens_only_when_the_engine_has_confirmed(tmp_path: Path) -> None:
    rules = FlowRules(RolloutSection(batch=4, group_size=2, max_staleness=1, max_inflight=8))
    buffer = TrajectoryBuffer(rules, tasks=CallerTasks(), ledger=Ledger())
    meanwhile: list[int] = []

    class Slow(ScriptedEngine):
        async def update_weights(self, update: WeightUpdate) -> None:
            meanwhile.append(buffer.version)
            await super().update_weights(update)

    config = parse_config({"agent": "a.py"})
    services: Any = SimpleNamespace(
        engine=Slow("words"), plugins=load_plugins(), config=config, run_dir=RunDir(tmp_path)
    )
    unused: Any = None
    progress: Any = SimpleNamespace(delivered=lambda version, *, seconds: None)
    source: Any = SimpleNamespace(set_version=buffer.set_version)
    loop = TrainingLoop(services, unused, source, unused, progress, unused)
    await loop._deliver(WeightUpdate(1, None))
    assert meanwhile == [0]
    assert buffer.version == 1


def test_an_update_has_the_time_that_its_bytes_need_on_a_slow_link(tmp_path: Path) -> None:
    """One of a model of 70B parameters used to have 600 s: a link of 1 Gbit/s takes twice as long."""
    size = 140_000_000_000
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(size)
    for weights in (tmp_path, tmp_path / "model.safetensors"):
        assert update_timeout_s(weights) > size / 10e6
    assert update_timeout_s(None) == update_timeout_s(tmp_path / "elsewhere") >= 1800


def test_waits_are_as_long_as_what_they_wait_for_may_take() -> None:
    usual = parse_config({"agent": "a.py"})
    slow = {"episode_timeout_s": 20_000.0, "infra_retries": 1, "wait_s": 30.0}
    patient = parse_config({"agent": "a.py", "rollout": slow})
    assert cut_timeout_s(usual) == 2 * 600.0 * 3 + 30.0
    assert cut_timeout_s(patient) == 2 * 20_000.0 * 2 + 30.0
    stalled = stalled_s(patient, update_s=50_000.0)
    assert stalled > cut_timeout_s(patient) + patient.trainer.step_timeout_s + 2 * 50_000.0
    judged = {"max_inflight": 10, "reward_workers": 4, "reward_timeout_s": 5_000.0}
    rewards = {"contains_answer": 1.0, "exact_match": 1.0}
    judging = parse_config({"agent": "a.py", "rollout": judged, "rewards": rewards})
    assert cut_timeout_s(judging) == 2 * (600.0 * 3 + 5 * 5_000.0) + 30.0
