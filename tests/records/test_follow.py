"""A run that is read on is the run as it would be read anew, whatever happened to it meanwhile."""

from collections.abc import Callable
from pathlib import Path

import pytest

from areal_sdk.records import FollowedRun
from areal_sdk.telemetry import EpisodeWriter, MetricsLog, RunDir
from areal_sdk.trajectory import Credit
from areal_sdk.types import Episode, Outcome, Task

Change = Callable[[EpisodeWriter, MetricsLog], None]


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir.create(tmp_path, "run")
    made.write_config({"model": "tiny"})
    return made


def play(*names: str, split: str = "train", after: int | None = None) -> Change:
    def change(episodes: EpisodeWriter, metrics: MetricsLog) -> None:
        for name in names:
            one = Episode(name, Task(name), (), Outcome.scored(0.5), group=name)
            episodes.write(one, split=split, measures=after)

    return change


def step(number: int, *names: str) -> Change:
    def change(episodes: EpisodeWriter, metrics: MetricsLog) -> None:
        episodes.mark_taken(number, waiting=())
        episodes.mark_trained({name: Credit(1.0) for name in names}, step=number)
        metrics.log("step", {"step": number})

    return change


def resume(after: int) -> Change:
    def change(episodes: EpisodeWriter, metrics: MetricsLog) -> None:
        episodes.mark_resumed(after)
        metrics.log("resume", {"step": after})

    return change


HISTORY: tuple[Change, ...] = (
    play("m", split="eval", after=0),
    play("a", "b"),
    step(1, "a"),
    play("c", "d"),
    step(2, "b", "c"),
    resume(1),
    play("b", "e"),
    step(2, "b"),
    play("n", split="eval", after=2),
    step(3, "e"),
    play("o", split="eval", after=3),
    play("f"),
    step(4, "f"),
)


@pytest.mark.parametrize("every", [1, 2, 3, 10])
@pytest.mark.parametrize("file_bytes", [1, 1 << 20], ids=["a file each", "one file"])
def test_it_is_the_same_as_the_run_read_anew(run: RunDir, every: int, file_bytes: int) -> None:
    followed = FollowedRun(run.path)
    episodes, metrics = EpisodeWriter(run.episodes, file_bytes=file_bytes), MetricsLog(run.metrics)
    for number, change in enumerate(HISTORY, start=1):
        change(episodes, metrics)
        if number % every == 0 or number == len(HISTORY):
            followed.refresh()
            assert followed.episodes == list(run.list_episodes())[::-1]
            assert followed.events == run.read_history()
    assert followed.num_resumes == 1
    found = followed.find("b")
    assert found is not None
    assert found.step == 2
    assert followed.find("c") is None, "the resume undid it"
    metrics.close()
    episodes.close()


def test_episodes_that_were_deleted_are_gone(run: RunDir) -> None:
    episodes = EpisodeWriter(run.episodes, keep_bytes=4000)
    followed = FollowedRun(run.path)
    for number in range(60):
        play(f"e{number}")(episodes, MetricsLog(run.metrics))
        followed.refresh()
        assert followed.episodes == list(run.list_episodes())[::-1]
    assert run.num_deleted() > 0
    assert followed.find("e0") is None
    episodes.close()


def test_a_line_that_is_not_whole_is_read_when_it_is(run: RunDir) -> None:
    episodes, metrics = EpisodeWriter(run.episodes), MetricsLog(run.metrics)
    followed = FollowedRun(run.path)
    play("a")(episodes, metrics)
    followed.refresh()
    play("b")(episodes, metrics)
    index = run.episodes / "000001.index"
    whole = index.read_bytes()
    index.write_bytes(whole[:-10])
    followed.refresh()
    assert [one.id for one in followed.episodes] == ["a"]
    index.write_bytes(whole)
    followed.refresh()
    assert [one.id for one in followed.episodes] == ["a", "b"]
    episodes.close()
    metrics.close()
