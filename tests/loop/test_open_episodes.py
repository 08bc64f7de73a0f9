"""Long episodes outlive the run: killed in their midst, they go on where they were."""

import json
import signal
import subprocess
import sys
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
    SMALL,
    finish,
    resume_training,
    run_dir,
    start_command,
    start_training,
    wait_for_steps,
)
from tests.toolbox.run_records import check_books

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


@pytest.mark.parametrize(
    "checkpoint_every",
    [1, pytest.param(0, marks=pytest.mark.long)],  # 0: it begins anew, and versions become negative
)
def test_replayed_tokens_are_no_newer_than_the_weights_and_no_older_than_allowed(
    tmp_path: Path, checkpoint_every: int
) -> None:
    settings: dict[str, Any] = {
        "run__steps": 6,
        "run__checkpoint_every": checkpoint_every,
        "rollout__batch": 8,
        "rollout__group_size": 2,
        "rollout__max_staleness": 2,
    }
    process = start_training(tmp_path, *PARTS, agent=AGENT, env=env(tmp_path), **settings)
    wait_for_steps(process, tmp_path, 3)
    process.kill()
    process.communicate()
    output = finish(resume_training(tmp_path, env=env(tmp_path, LONG_AGENT_LIFE="second")))
    assert "unfinished episode" in output
    check_books(tmp_path, trained=6 * 8)
    run = run_dir(tmp_path)
    tokens = {
        (episode, said)
        for life in sampled(tmp_path).values()
        for episode, turns in life.items()
        for _, said in turns
    }
    num_replayed = 0.0
    for summary in run.list_episodes():
        if summary.step is not None:
            episode = run.find_episode(summary.id).episode
            num_replayed += episode.outcome.metrics.get("replayed_turns", 0)
            assert all((episode.id, turn.output_tokens) in tokens for turn in episode.turns)
            versions = {version for turn in episode.turns for version in turn.versions}
            assert summary.step - 3 <= min(versions) <= max(versions) < summary.step
    assert num_replayed or not checkpoint_every


COMMAND = """
import json, os, pathlib, sys, time, urllib.request

beside = pathlib.Path(sys.argv[1])
order = json.load(sys.stdin)
messages = [{"role": "user", "content": order["data"]["prompt"]}]
for number in range(5):
    while number == 3 and (beside / "hold").exists():
        time.sleep(0.01)
    body = json.dumps({"model": order["model"], "messages": messages, "max_tokens": 8})
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        body.encode(),
        {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    with (beside / "effects").open("a") as effects:
        effects.write(f"{order['data']['prompt']} {message['content']}\\n")
    messages += [message, {"role": "user", "content": f"done {number}"}]
print(json.dumps({"reward": float(message["content"][0] < "n")}))
"""


@pytest.mark.long
def test_a_command_starts_anew_with_the_same_answers_and_does_its_work_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "agent.py").write_text(COMMAND)
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"prompt": word}) + "\n" for word in ("one", "two")))
    (tmp_path / "hold").touch()
    settings = SMALL | {
        "run.dir": tmp_path,
        "run.name": "run",
        "run.steps": 1,
        "rollout.batch": 4,
        "rollout.group_size": 2,
        "rollout.epochs": 1,
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    command = f"{sys.executable} {tmp_path / 'agent.py'} {tmp_path}"
    parts = (*PARTS, "--command", command, "--tasks", str(tasks), *options)
    process = start_command("train", *parts, env=env(tmp_path))
    wait_for_answers(process, tmp_path, {3: 4})
    process.kill()
    process.communicate()
    done = (tmp_path / "effects").read_text().splitlines()
    resumed(tmp_path)
    before, after = sampled(tmp_path).values()
    played = episodes(tmp_path)
    assert len(played) == 4
    for episode in played:
        assert [turn.output_tokens for turn in episode.turns] == [
            tokens for _, tokens in before[episode.id] + after[episode.id]
        ]
        assert (len(before[episode.id]), len(after[episode.id])) == (3, 2)
    again = (tmp_path / "effects").read_text().splitlines()[len(done) :]
    assert Counter(done) <= Counter(again)


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
