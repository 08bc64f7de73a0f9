"""Tasksets of verifiers, played by the real package in a Python of its own."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

import areal_sdk
from areal_sdk import ConfigError, Episode, Run, Task
from areal_sdk.testing import run_agent, tool_call
from areal_sdk.types import OutcomeKind
from areal_sdk_verifiers.agent import Verifiers
from areal_sdk_verifiers.dataset import tasks
from areal_sdk_verifiers.library import VERIFIERS, VERSION, with_harness

TASKSETS = str(Path(__file__).parent / "tasksets")
DEADLINE_S = 300.0


@pytest.fixture(autouse=True)
async def ended() -> AsyncIterator[None]:
    """No process outlives its test."""
    yield
    await VERIFIERS.aclose()


# without verifiers


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "name a taskset"),
        ({"taskset": "a", "held_out": 2.0}, "held_out = 2.0"),
        ({"taskset": "a", "python": "/no/such/python"}, "there is no such program"),
        ({"taskset": "a", "python": sys.executable}, "No module named 'verifiers'"),
    ],
)
def test_wrong_options_are_errors(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        list(tasks("train", **options))


async def test_a_task_of_another_dataset_is_an_error() -> None:
    episode = await run_agent(Verifiers(), Task("a", {"question": "?"}), engine=[])
    assert "has question: play tasks of the dataset verifiers" in episode.outcome.message


async def test_a_python_without_verifiers_says_so() -> None:
    data = {"idx": 0, "key": "", "env": {"taskset": {"id": "a"}}, "path": []}
    episode = await run_agent(Verifiers(), Task("a", {**data, "python": sys.executable}), engine=[])
    assert episode.outcome.kind is OutcomeKind.ERROR
    assert "No module named 'verifiers'" in episode.outcome.message


# with it


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A Python that has verifiers."""
    if ready := os.environ.get("AREAL_SDK_VERIFIERS_PYTHON"):
        return ready
    place = tmp_path_factory.mktemp("verifiers")
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, timeout=DEADLINE_S)
    own = str(place / "bin" / "python")
    install = [own, "-m", "pip", "install", "--quiet", f"verifiers=={VERSION}"]
    ended = subprocess.run(install, capture_output=True, text=True, timeout=1200)
    if ended.returncode:
        pytest.skip(f"verifiers could not be installed: {ended.stderr.strip()[-200:]}")
    return own


def of(taskset: str, python: str, **options: Any) -> list[Task]:
    options = {"held_out": 1.0, "count": 12, **options}
    return list(tasks("eval", taskset=taskset, python=python, path=(TASKSETS,), **options))


async def played(task: Task, *script: str, **limits: Any) -> Episode:
    return await run_agent(Verifiers(), task, engine=list(script), timeout_s=DEADLINE_S, **limits)


@pytest.mark.slow
async def test_known_answers_earn_the_reward_and_wrong_ones_earn_none(python: str) -> None:
    found = of("sums_v1", python)
    right = [await played(task, str(number + 7)) for number, task in enumerate(found)]
    assert [(one.reward, len(one.turns)) for one in right] == [(1.5, 1)] * 12
    assert right[0].outcome.metrics == {"right": 1.0, "is_short": 1.0, "length": 1.0}
    wrong = [await played(task, f"I think it is {number + 8}") for number, task in enumerate(found)]
    assert [one.reward for one in wrong] == [0.0] * 12


@pytest.mark.slow
async def test_the_tools_of_a_task_are_offered_and_answer(python: str) -> None:
    task = of("vault_v1", python)[2]
    right = await played(task, tool_call("vault_open_shelf", number=2), "etad")
    assert (right.reward, len(right.turns)) == (1.0, 2)
    assert right.messages[0] == {"role": "system", "content": "Use the vault."}
    assert [m["content"] for m in right.messages if m["role"] == "tool"] == ["date"]
    without = await played(task, "I cannot know.")
    assert without.reward == 0.0


@pytest.mark.slow
async def test_what_a_model_gets_wrong_is_answered(python: str) -> None:
    task = of("vault_v1", python)[0]
    bad = '<tool_call>\n{"name": "vault_open_shelf", "arguments": [1]}\n</tool_call>'
    script = [tool_call("jump"), tool_call("vault_open_shelf", word="x"), bad, "raep"]
    episode = await played(task, *script)
    said = [str(m["content"]) for m in episode.messages if m["role"] == "tool"]
    assert said[0].startswith("error: no tool 'jump'; there are vault_open_shelf")
    assert "rror" in said[1]
    assert len(episode.turns) >= 3


@pytest.mark.slow
async def test_a_limit_ends_the_chat_and_the_task_judges(python: str) -> None:
    task = of("vault_v1", python)[0]
    script = [tool_call("vault_open_shelf", number=0)] * 5
    episode = await played(task, *script, max_turns=2)
    assert (episode.reward, len(episode.turns), episode.truncated) == (0.0, 2, True)


@pytest.mark.slow
async def test_episodes_share_a_process_and_one_that_dies_is_replaced(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = of("sums_v1", python)
    both = await asyncio.gather(*(played(task, str(n + 7)) for n, task in enumerate(found[:6])))
    assert [one.reward for one in both] == [1.5] * 6
    first = await VERIFIERS.player(python, with_harness([TASKSETS]))
    first._process.kill()
    dead = await played(found[0], "7")
    assert dead.reward == 1.5 or "the process of verifiers ended" in dead.outcome.message
    assert (await played(found[0], "7")).reward == 1.5
    assert await VERIFIERS.player(python, with_harness([TASKSETS])) is not first
    monkeypatch.setattr(VERIFIERS, "most_episodes", 1)
    assert (await played(found[0], "7")).reward == 1.5


@pytest.mark.slow
async def test_a_taskset_that_has_changed_is_an_error(python: str) -> None:
    (task, *_) = of("sums_v1", python)
    changed = Task(task.id, {**task.data, "key": "another"})
    episode = await played(changed, "7")
    assert "task 0 is another one now" in episode.outcome.message


@pytest.mark.slow
def test_held_out_tasks_are_chosen_by_content_or_by_options(python: str) -> None:
    def names(split: str, **options: Any) -> set[str]:
        options = {"taskset": "sums_v1", "python": python, "path": (TASKSETS,), **options}
        return {task.id for task in tasks(split, **options)}

    train, held = names("train", held_out=0.5), names("eval", held_out=0.5)
    assert not train & held
    assert len(train | held) == 20
    assert names("eval", eval_options={"first": 90, "count": 2}) == {
        "sums_v1/sum-90",
        "sums_v1/sum-91",
    }
    assert len(names("train", eval_options={"first": 90})) == 20


@pytest.mark.slow
def test_a_run_trains_on_a_taskset(python: str, tmp_path: Path) -> None:
    """Three steps of a model from nothing, whose rewards are the task's own numbers."""
    summary = areal_sdk.train(
        "verifiers",
        model="tiny",
        tasks=of("vowels_v1", python),
        run={"steps": 3, "dir": str(tmp_path), "name": "run"},
        rollout={"batch": 8, "group_size": 4, "max_new_tokens": 8},
        trainer={"precision": "float32"},
        engine={"dtype": "float32"},
        eval={"before": False, "after": False},
        quiet=True,
    )
    assert summary.steps == 3
    rewards = [row["reward"] for row in Run(tmp_path / "run").episodes()]
    assert len(rewards) >= 24
    assert 0.0 < max(rewards) < 1.0
    assert all(0.0 <= reward <= 1.0 for reward in rewards)
