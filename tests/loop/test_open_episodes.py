"""Long episodes outlive the run: killed in their midst, they go on where they were."""

import json
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.types import Episode
from tests.loop.long_agent import HELD_AT, NUM_TURNS
from tests.loop.runs import (
    DEADLINE_S,
    SCRIPTED_TRAINER,
    finish,
    resume_training,
    run_dir,
    start_training,
)

AGENT = Path(__file__).with_name("long_agent.py")
PARTS = (*SCRIPTED_TRAINER, "--plugin", str(AGENT), "--set", "engine.name=witness")
NUM_OPEN = 50
FIFTY = {
    "run__steps": 1,
    "rollout__batch": NUM_OPEN,
    "rollout__group_size": 2,
    "rollout__max_inflight": NUM_OPEN,
    "rollout__max_staleness": 0,
}


def held(directory: Path, num: int, **settings: Any) -> "subprocess.Popen[str]":
    """A run in whose `num` episodes `HELD_AT` answers were given."""
    (directory / "hold").touch()
    process = start_training(
        directory, *PARTS, agent=AGENT, env=env(directory), **{**FIFTY, **settings}
    )
    wait_for_answers(process, directory, {HELD_AT: num})
    return process


def wait_for_answers(
    process: "subprocess.Popen[str]", directory: Path, wanted: Mapping[int, int]
) -> None:
    """Return once the journal holds `wanted`: numbers of episodes by their number of answers."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        files = [*(directory / "run" / "open").glob("*.log")]
        answers = Counter(file.read_bytes().count(b"\n") - 1 for file in files)
        if all(answers[num] >= many for num, many in wanted.items()):
            return
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, answers
        time.sleep(0.02)


def env(directory: Path, **more: str) -> dict[str, str]:
    return {"LONG_AGENT": str(directory), **more}


def resumed(directory: Path, *arguments: str, **more: str) -> str:
    """The output of the run's second life, in which no episode waits."""
    (directory / "hold").unlink()
    life = env(directory, LONG_AGENT_LIFE="second", **more)
    return finish(resume_training(directory, *arguments, env=life))


def sampled(directory: Path) -> dict[str, dict[str, list[tuple[int, tuple[int, ...]]]]]:
    """What the engine sampled in each life of the run, by episode."""
    found: dict[str, dict[str, list[tuple[int, tuple[int, ...]]]]] = {}
    for line in (directory / "sampled").read_text().splitlines():
        life, session, num_prompt, tokens = json.loads(line)
        found.setdefault(life, {}).setdefault(session, []).append((num_prompt, tuple(tokens)))
    return found


def header(file: Path) -> dict[str, Any]:
    """The first line of a record, which says whose it is."""
    first: dict[str, Any] = json.loads(file.read_bytes().splitlines()[0].partition(b" ")[2])
    return first


def episodes(directory: Path) -> list[Episode]:
    run = run_dir(directory)
    return [run.find_episode(summary.id).episode for summary in run.list_episodes()]


@pytest.mark.parametrize(
    "players",
    [
        {},
        pytest.param({"rollout__workers": 2}, marks=pytest.mark.long),
        pytest.param({"rollout__nodes": 2}, marks=pytest.mark.long),
    ],
    ids=["here", "workers", "nodes"],
)
def test_of_fifty_open_episodes_none_starts_at_turn_zero_after_kill_9(
    tmp_path: Path, players: dict[str, int]
) -> None:
    process = held(tmp_path, NUM_OPEN, **players)
    process.kill()
    process.communicate()
    output = resumed(tmp_path)
    assert "50 unfinished episodes will go on after 300 recorded answers" in output
    before, after = sampled(tmp_path).values()
    played = [episode for episode in episodes(tmp_path) if episode.id in before]
    assert len(before) == len(played) == NUM_OPEN
    for episode in played:
        assert [turn.output_tokens for turn in episode.turns] == [
            tokens for _, tokens in before[episode.id] + after[episode.id]
        ]
        assert len(before[episode.id]) == HELD_AT
        assert [turn.num_prompt for turn in episode.turns[HELD_AT:]] == [
            num_prompt for num_prompt, _ in after[episode.id]
        ]
        assert episode.outcome.metrics == {"replayed_turns": HELD_AT, "unused_turns": 0}
    ledger = run_dir(tmp_path).read_ledger()
    assert ledger is not None
    assert ledger["trained"] == NUM_OPEN  # no reward counts twice
    assert ledger["started"] == NUM_OPEN + sum(ledger["dropped"].values())
    (step,) = run_dir(tmp_path).read_steps()
    assert step["batch/outcome/replayed_turns"] == HELD_AT
    left = {header(file)["task"] for file in (tmp_path / "run" / "open").glob("*.log")}
    assert not left & {episode.task.id for episode in played}


def test_an_agent_that_differs_goes_on_live_and_a_damaged_record_is_named(tmp_path: Path) -> None:
    settings = {"rollout__batch": 8, "rollout__max_inflight": 8}
    process = held(tmp_path, 8, **settings)
    process.send_signal(signal.SIGINT)
    process.communicate()
    damaged, *_, differing = sorted((tmp_path / "run" / "open").glob("*-0.log"))
    damaged.write_bytes(damaged.read_bytes().replace(b'"output":[', b'"output":[1', 1))
    torn = differing.with_name(differing.name.replace("-0", "-1"))
    torn.write_bytes(torn.read_bytes()[:-10])
    damaged_task, number = (header(path)["task"] for path in (damaged, differing))
    differs = json.dumps([int(number.removeprefix("train-"))])
    output = resumed(tmp_path, LONG_AGENT_DIFFERS=differs)
    assert "7 unfinished episodes will go on after 41 recorded answers" in output
    assert f"{damaged} is damaged (line 2 does not have its checksum)" in output
    assert "left the record of episode" in output
    assert "after 3 of" in output
    before, after = sampled(tmp_path).values()
    played = [episode for episode in episodes(tmp_path) if episode.id in before]
    assert len(played) == 8
    for episode in played:
        turns = [turn.output_tokens for turn in episode.turns]
        assert len(turns) == NUM_TURNS
        replayed, unused = 6, 0
        if episode.task.id == number:
            replayed, unused = 3, (2 if episode.sibling else 3)
        if episode.task.id == damaged_task and episode.sibling == 0:
            assert "replayed_turns" not in episode.outcome.metrics
            assert turns == [tokens for _, tokens in after[episode.id]]
            continue
        assert episode.outcome.metrics == {"replayed_turns": replayed, "unused_turns": unused}
        assert turns == [tokens for _, tokens in before[episode.id][:replayed] + after[episode.id]]


@pytest.mark.long
def test_an_agent_whose_effects_must_not_repeat_starts_anew(tmp_path: Path) -> None:
    small = {"rollout__batch": 2, "rollout__max_inflight": 2}
    process = held(tmp_path, 2, **small)
    process.kill()
    process.communicate()
    resumed(tmp_path, "--set", "rollout.resume_episodes=false")
    before, after = sampled(tmp_path).values()
    assert [len(after[episode]) for episode in before] == [NUM_TURNS] * 2
    assert not (tmp_path / "run" / "open").exists()
