"""Episodes on disk: small, found by their place, whole after a crash, bounded, and never gone in silence."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest

from areal_sdk.errors import ConfigError, StorageError
from areal_sdk.finetune.recorded_episodes import learnt_episodes
from areal_sdk.rollout.trajectory import to_trajectories
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.episode_log import (
    EpisodeWriter,
    find_episode,
    list_episodes,
    num_deleted,
    prepare,
    read_episode,
)
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.types import Episode, Exclusion, FinishReason, ForkReason, Outcome, Task, Turn

FIRST_FORMAT = Path(__file__).with_name("first_format")
SYSTEM = "You answer questions of arithmetic. Think, then give the number alone. " * 4


def short(number: int, *, reward: float = 1.0) -> Episode:
    """An episode of six sampled tokens, as a group of eight siblings has them."""
    group = number // 8
    asked = f"What is {group} + {7 * group}?"
    prompt = tuple(ord(letter) * 31 for letter in SYSTEM + asked)
    turn = Turn(
        prompt,
        tuple(1000 + (number * 31 + token * 7919) % 49000 for token in range(6)),
        tuple(-((number * 17 + token) % 97) / 64 for token in range(6)),
        (group,) * 6,
        {"role": "assistant", "content": f"It is {8 * group}."},
        ({"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}),
        duration_s=0.1 + number / 7,
        began_s=number / 11,
        first_token_s=number / 13,
    )
    return Episode(
        f"train-{group}.0.{number % 8}",
        Task(f"train-{group}", {"question": asked, "answer": 8 * group}),
        (turn,),
        Outcome.scored(reward),
        group=f"train-{group}.0",
        sibling=number % 8,
        duration_s=number / 3,
    )


def branching() -> Episode:
    """Two branches of one trunk, of several versions, and a turn that is not trained."""
    trunk = Turn((1, 2, 3), (4, 5), (-0.1, -0.25), (0, 1), temperature=0.5)
    shared: dict[str, Any] = {"num_shared": 5, "shares_with": 0, "_before": trunk}
    turns = (
        trunk,
        Turn((6,), (7,), (-0.5,), (1,), parent=0, **shared),
        Turn((8,), (9, 9), (-0.5, -1.0), (2, 3), parent=0, **shared),
        Turn((1,), (2,), (0.0,), (3,), excluded=Exclusion.GREEDY, fork=ForkReason.SUBAGENT),
    )
    return Episode("e", Task("t"), turns, Outcome.scored(0.5, turn_rewards=(None, 0.5, 1.0, None)))


def write(directory: Path, *episodes: Episode, split: str = "train") -> None:
    writer = EpisodeWriter(directory)
    for episode in episodes:
        writer.write(episode, trajectories=to_trajectories(episode), version=1, split=split)
    writer.close()


def test_a_short_episode_takes_less_than_half_a_kilobyte(tmp_path: Path) -> None:
    """The size includes index and trajectory; it was 5 to 18 kB."""
    episodes = [short(number) for number in range(64)]
    write(tmp_path, *episodes)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) / 64 < 512
    for summary in list_episodes(tmp_path):
        found = read_episode(tmp_path, summary)
        assert found.episode == next(e for e in episodes if e.id == summary.id)
        assert found.trajectories == to_trajectories(found.episode)


def test_an_episode_comes_back_with_its_branches_and_trajectories(tmp_path: Path) -> None:
    episode = branching()
    write(tmp_path, short(0), episode)
    found = find_episode(tmp_path, "e")
    assert found is not None
    assert found.episode == episode
    assert found.trajectories == to_trajectories(episode)
    assert found.trajectories[1].branch.before is found.trajectories[0].branch
    assert [turn.logprobs for turn in found.episode.turns] == [t.logprobs for t in episode.turns]
    assert [turn.began_s for turn in found.episode.turns] == [t.began_s for t in episode.turns]


@pytest.mark.parametrize("changed", ["loss_mask", "versions", "temperatures", "reward", "tokens"])
def test_a_trajectory_that_does_not_follow_from_the_turns_is_written_in_full(
    tmp_path: Path, changed: str
) -> None:
    first, _ = to_trajectories(branching())
    value: Any = first.reward + 1 if changed == "reward" else getattr(first, changed).copy()
    if changed == "loss_mask":
        value[:] = False
    elif changed != "reward":
        value[-1] += 1
    whole: dict[str, Any] = {changed: value, "branch": None}
    other = replace(first, **whole)
    writer = EpisodeWriter(tmp_path)
    writer.write(branching(), trajectories=[other], version=1)
    writer.close()
    found = find_episode(tmp_path, "e")
    assert found is not None
    assert found.trajectories == (other,)


def test_logprobs_that_float32_does_not_hold_keep_their_digits(tmp_path: Path) -> None:
    turn = Turn((1,), (2, 3), (-0.1, -1e-300), (0, 0))
    write(tmp_path, Episode("e", Task("t"), (turn,), Outcome.scored(1.0)))
    found = find_episode(tmp_path, "e")
    assert found is not None
    assert found.episode.turns[0].logprobs == (-0.1, -1e-300)


def test_what_rollout_nodes_prepare_is_what_the_main_process_writes(tmp_path: Path) -> None:
    large = short(1)
    large = replace(large, task=Task("t", {"text": os.urandom(100_000).hex()}))
    for name, made in (("large first", (large, short(2))), ("large second", (short(2), large))):
        writer = EpisodeWriter(tmp_path / name)
        for episode in made:
            record = prepare(episode, trajectories=to_trajectories(episode))
            assert record.episode["id"] == episode.id
            writer.append(record, version=3)
        writer.close()
        for episode in made:
            found = find_episode(tmp_path / name, episode.id)
            assert found is not None
            assert (found.episode, found.version) == (episode, 3)


def test_a_run_of_an_earlier_version_is_read_and_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / "episodes"
    shutil.copytree(FIRST_FORMAT, directory)
    listed = [(e.id, e.split, e.reward, e.step, e.advantage) for e in list_episodes(directory)]
    assert listed == [
        ("eval.a.0", "eval", 1.0, None, None),
        ("a.1", "train", 0.5, 1, -0.5),
        ("a.0", "train", 1.0, 1, 0.5),
    ]
    undone = find_episode(directory, "b.0")
    assert undone is not None
    assert undone.is_undone
    assert undone.dropped is DropReason.ERROR_AGENT
    assert undone.episode.outcome.trace == "Traceback"
    old = find_episode(directory, "a.0")
    assert old is not None
    assert old.trajectories == to_trajectories(old.episode)
    _, second, aside = old.episode.turns
    assert second.tokens == (1, 2, 3, 4, 5, 6, 7, 8)
    assert (second.temperature, second.finish_reason) == (0.5, FinishReason.LENGTH)
    assert (aside.fork, aside.excluded) == (ForkReason.SUBAGENT, Exclusion.GREEDY)
    write(directory, old.episode)
    again = find_episode(directory, "a.0")
    assert again is not None
    assert again.step is None
    assert (again.episode, again.trajectories) == (old.episode, old.trajectories)
    # The oldest files go, whatever their format is.
    writer = EpisodeWriter(directory, keep_bytes=800, file_bytes=400)
    writer.write(short(0))
    writer.close()
    assert not list(directory.glob("*.jsonl"))
    assert num_deleted(directory) >= 4


KILLED = """
import sys
from pathlib import Path
from areal_sdk.telemetry.episode_log import EpisodeWriter
from tests.telemetry.test_episode_files import short

writer = EpisodeWriter(Path(sys.argv[1]), file_bytes=20_000)
number = 0
while True:
    writer.write(short(number), version=number)
    number += 1
    if number == 50:
        print("written", flush=True)
"""


def test_kill_9_leaves_whole_episodes_and_writing_goes_on(tmp_path: Path) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "written\n"
    os.kill(writer.pid, signal.SIGKILL)
    writer.communicate()
    newest = max(tmp_path.glob("*.index"))
    with newest.open("ab") as index, newest.with_suffix(".episodes").open("ab") as records:
        records.write(b"x\x9c a torn record")
        index.write(b'{"id":"torn","task_id')
    number = 1 + max(e.version or 0 for e in list_episodes(tmp_path))
    write(tmp_path, short(number))
    listed = list(list_episodes(tmp_path))
    assert len(listed) == number + 1 > 50
    for summary in listed:
        read_episode(tmp_path, summary)


def test_an_episode_that_was_damaged_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    write(tmp_path, *map(short, range(4)))
    (file,) = tmp_path.glob("*.episodes")
    (_, third, *_) = list_episodes(tmp_path)
    content = bytearray(file.read_bytes())
    content[third.offset + third.length // 2] ^= 16
    file.write_bytes(content)
    with pytest.raises(StorageError, match=r"at byte \d+ of .*000001.episodes is damaged"):
        read_episode(tmp_path, third)
    for summary in list_episodes(tmp_path):
        if summary != third:
            read_episode(tmp_path, summary)


def test_damage_of_the_words_that_episodes_share_is_named_too(tmp_path: Path) -> None:
    write(tmp_path, *map(short, range(4)))
    (file,) = tmp_path.glob("*.episodes")
    content = bytearray(file.read_bytes())
    content[0] ^= 255
    file.write_bytes(content)
    for summary in list_episodes(tmp_path):
        with pytest.raises(StorageError, match=r"at byte 0 of .*000001.episodes is damaged"):
            read_episode(tmp_path, summary)


def test_the_oldest_episodes_go_and_it_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run, said = RunDir.create(tmp_path, "run"), list[str]()
    for part in range(2):  # the run is resumed once
        writer = EpisodeWriter(run.episodes, keep_bytes=20_000, say=said.append)
        for number in range(200):
            writer.write(short(200 * part + number))
            total = sum(path.stat().st_size for path in run.episodes.iterdir())
            assert total < 20_000 + 3_000
        writer.close()
    assert said == [
        "its episodes fill 2e-05 GB (run.keep_episodes): from now on the oldest are deleted"
    ]
    kept = [e.id for e in run.list_episodes()]
    newest = [short(number).id for number in reversed(range(400))]
    assert kept == newest[: len(kept)]
    assert 20 < len(kept) < 100
    assert run.num_deleted() == 400 - len(kept)
    deleted = rf"the newest are {newest[0]}.* and the oldest {400 - len(kept)} are deleted"
    with pytest.raises(ConfigError, match=deleted):
        run.find_episode(short(0).id)
    assert len(learnt_episodes(run)) == len(kept)
    assert f"has deleted its oldest {400 - len(kept)} episodes" in caplog.text


def test_evaluations_are_kept_apart(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path, keep_bytes=20_000)
    writer.write(replace(short(0), id="before"), split="eval", measures=0)
    for number in range(200):
        writer.write(short(number))
    writer.write(replace(short(0), id="after"), split="hard", measures=9)
    writer.close()
    listed = list(list_episodes(tmp_path))
    assert [e.id for e in listed if e.split not in ("train", "live")] == ["after", "before"]
    assert listed[0].id == "after"
    assert listed[-1].id == "before"
    found = find_episode(tmp_path, "before")
    assert found is not None
    assert found.episode.turns


@pytest.mark.parametrize(
    ("part", "wrong", "told"),
    [
        ("episode", {"duration_s": "long"}, "duration_s of Episode is 'long'"),
        ("outcome", {"reward": "much"}, "reward of Outcome is 'much'"),
        ("outcome", {"turn_rewards": [None, "x"]}, "turn_rewards of Outcome"),
        ("task", {"data": ["a"]}, "data of Task"),
        ("turn", {"message": None}, "message of Turn is None"),
        ("turn", {"parent": 0}, "parent of turn 0 is 0"),
        ("turn", {"float32_logprobs": 6 * [1e300]}, "overflow"),
    ],
)
def test_a_record_with_a_value_of_a_wrong_type_is_named_with_its_field(
    tmp_path: Path, part: str, wrong: dict[str, Any], told: str
) -> None:
    writer = EpisodeWriter(tmp_path)
    record = prepare(short(3))
    whole = orjson.loads(record.record)
    episode = whole["episode"]
    parts = {"episode": episode, "turn": episode["turns"][0]}
    parts.get(part, episode.get(part)).update(wrong)
    writer.append(replace(record, record=orjson.dumps(whole)), version=0)
    writer.close()
    with pytest.raises(StorageError, match=f"the record of episode 'train-0.0.3' .*{told}"):
        find_episode(tmp_path, "train-0.0.3")


def test_a_metric_that_is_no_number_is_read_as_none(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path)
    outcome = Outcome.scored(1.0, metrics={"ratio": 0.5})
    object.__setattr__(outcome, "metrics", {"ratio": float("nan")})
    writer.write(replace(short(3), outcome=outcome))
    writer.close()
    found = find_episode(tmp_path, "train-0.0.3")
    assert found is not None
    assert found.episode.outcome.metrics == {"ratio": None}
