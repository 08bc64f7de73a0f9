"""Training with rollout nodes (`rollout.nodes`): the same episodes, and nodes that are killed."""

import itertools
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.loop.runs import (
    SCRIPTED,
    children_of,
    finish,
    refused,
    run_dir,
    start_training,
    steps_so_far,
    training,
    wait_for_steps,
)
from tests.toolbox.run_records import check_books

DETERMINISTIC: dict[str, Any] = {"run__deterministic": True, "run__steps": 3}
NODES: dict[str, Any] = {"rollout__nodes": 2}


def kill_node(pid: int, number: int) -> None:
    """Kill -9 a node of the main process `pid`, if it is there: it may be starting."""
    for node in children_of(pid, f"node-{number}"):
        os.kill(node, signal.SIGKILL)


def played(directory: Path) -> dict[str, tuple[object, ...]]:
    """The tokens that were sampled in each episode, and its reward."""
    records = (run_dir(directory).find_episode(e.id) for e in run_dir(directory).list_episodes())
    return {
        record.episode.id: (
            record.episode.reward,
            *((turn.tokens, turn.logprobs, turn.versions) for turn in record.episode.turns),
        )
        for record in records
        if record.dropped is None
    }


def curve(directory: Path) -> list[tuple[float, float]]:
    rows = run_dir(directory).read_metrics(kind="step")
    return [(row["train/loss"], row["train/grad_norm"]) for row in rows]


@pytest.mark.long
def test_nodes_play_the_episodes_of_the_main_process_also_when_one_is_killed(
    tmp_path: Path,
) -> None:
    # Long enough that a node which is killed after two steps is missed before the end.
    steps: dict[str, Any] = {"run__deterministic": True, "run__steps": 24}
    finish(start_training(tmp_path / "here", *SCRIPTED, **steps))
    process = start_training(tmp_path / "nodes", *SCRIPTED, **NODES, **steps)
    wait_for_steps(process, tmp_path / "nodes", 2)
    kill_node(process.pid, 0)
    output = finish(process)
    assert "was killed by SIGKILL; log: " in output
    assert "node-0.log: another node takes its place" in output
    found = played(tmp_path / "nodes")
    assert len(found) == 24 * 16
    assert found == played(tmp_path / "here")
    check_books(tmp_path / "nodes", trained=24 * 16)


def test_what_nodes_cannot_do_is_refused_before_anything_starts(tmp_path: Path) -> None:
    told = refused("serve", "--learn", "--model", "tiny", "--set", "rollout.nodes=2")
    assert "rollout.nodes = 2" in told
    plugin = tmp_path / "alone.py"
    plugin.write_text(
        "import areal_sdk\n"
        "from areal_sdk.testing import ScriptedEngine\n"
        "@areal_sdk.hookimpl\n"
        "def register_engines(register):\n"
        "    register('alone', ScriptedEngine)\n"
    )
    options = ("--plugin", str(plugin), "--set", "engine.name=alone")
    told = refused(*training(tmp_path, *options, **NODES), "--dry-run")
    assert "'alone' has no entrance" in told


@pytest.mark.slow
def test_losses_with_nodes_are_those_without_bit_for_bit(tmp_path: Path) -> None:
    finish(start_training(tmp_path / "here", **DETERMINISTIC))
    finish(start_training(tmp_path / "nodes", **NODES, **DETERMINISTIC))
    found = curve(tmp_path / "nodes")
    assert found == curve(tmp_path / "here")
    assert len(set(found)) == 3
    check_books(tmp_path / "nodes", trained=3 * 16)


@pytest.mark.slow
def test_losses_are_the_same_also_when_nodes_are_killed(tmp_path: Path) -> None:
    steps: dict[str, Any] = {
        "run__deterministic": True,
        "run__steps": 8,
        "rollout__infra_retries": 100,
    }
    finish(start_training(tmp_path / "here", **steps))
    process = start_training(tmp_path / "nodes", **NODES, **steps)
    for step in (1, 3, 5):
        wait_for_steps(process, tmp_path / "nodes", step)
        kill_node(process.pid, step % 2)
    finish(process)
    assert curve(tmp_path / "nodes") == curve(tmp_path / "here")
    check_books(tmp_path / "nodes", trained=8 * 16)


@pytest.mark.slow
def test_no_episode_is_lost_or_counted_twice_under_many_kills(tmp_path: Path) -> None:
    settings = {**NODES, "run__steps": 200, "rollout__infra_retries": 100}
    process = start_training(tmp_path, *SCRIPTED, **settings)
    wait_for_steps(process, tmp_path, 1)
    num_killed = 0
    for step in itertools.count(2):
        if step > 180 or num_killed == 30:
            break
        if steps_so_far(tmp_path) < step:
            wait_for_steps(process, tmp_path, step)
        if found := children_of(process.pid, f"node-{step % 2}"):
            os.kill(found[0], signal.SIGKILL)
            num_killed += 1
    finish(process)
    check_books(tmp_path, trained=200 * 16)
    assert num_killed >= 10
