"""A run that is read on is the run as it would be read anew, whatever happened to it meanwhile."""

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from areal_sdk.errors import StorageError
from areal_sdk.records import FollowedRun
from areal_sdk.telemetry import EpisodeWriter, MetricsLog, RunDir, episode_log
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


def append(run: RunDir, *lines: object, to: str = "episodes/000001.index") -> None:
    with (run.path / to).open("ab") as file:
        for line in lines:
            file.write(orjson.dumps(line) + b"\n")


def index_line(run: RunDir, **changes: object) -> dict[str, object]:
    """The line of the run's first episode, changed."""
    line: dict[str, object] = orjson.loads(
        (run.episodes / "000001.index").read_bytes().splitlines()[0]
    )
    return {**line, **changes}


def played(run: RunDir, *names: str) -> FollowedRun:
    episodes, metrics = EpisodeWriter(run.episodes), MetricsLog(run.metrics)
    play(*names)(episodes, metrics)
    metrics.log("step", {"step": 1})
    episodes.close()
    metrics.close()
    return FollowedRun(run.path)


@pytest.mark.parametrize("at_once", [True, False])
def test_a_line_that_cannot_be_read_hides_no_other_and_is_counted(
    run: RunDir, at_once: bool
) -> None:
    followed = played(run, "a")
    if not at_once:
        followed.refresh()
    odd = (
        [1],
        index_line(run, id="z", time="x"),
        index_line(run, id="z", offset=-1),
        index_line(run, id="z", file="../../secret.jsonl"),
        {"id": "z"},
        {"resumed": "x"},
        {"trained": 1, "credit": {"a": 5}},
        {"drops": "stale", "ids": 5},
    )
    append(run, *odd, {"newer": 3}, index_line(run, id="b"))
    at = {"time": 1.0, "step": 1}
    events = (
        *([1], {"kind": "step", "time": 1.0}, {"kind": "step", "step": 1}, {"a": 1}),
        {"kind": "notice", **at, "text": "slow"},
        {"kind": "notice", **at, "level": "note", "text": ["slow"]},
        {"kind": "failed", **at},
    )
    append(run, *events, to="metrics.jsonl")
    for _ in range(2):
        followed.refresh()
        assert [one.id for one in followed.episodes] == ["a", "b"]
        assert [event["kind"] for event in followed.events] == ["step"]
        assert followed.num_unreadable == len(odd) + len(events)
    assert [one.id for one in run.list_episodes()] == ["b", "a"]


def test_the_reason_of_a_newer_version_is_read_as_text(run: RunDir) -> None:
    followed = played(run, "a", "b")
    append(run, index_line(run, id="c", dropped="newer"), {"drops": "newer_too", "ids": ["b"]})
    followed.refresh()
    assert [one.dropped for one in followed.episodes] == [None, "newer_too", "newer"]
    assert followed.num_unreadable == 0


def test_a_refresh_that_fails_can_be_tried_again(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed = played(run, "a")
    followed.refresh()
    append(run, index_line(run, id="b"), {"drops": "stale", "ids": ["a"]})
    append(run, {"kind": "step", "step": 2, "time": 2.0}, to="metrics.jsonl")

    def fail(row: object) -> None:
        raise OSError("the disk is away")

    with monkeypatch.context() as patch:
        patch.setattr(episode_log, "marks_of", fail)
        for _ in range(3):
            with pytest.raises(OSError, match="away"):
                followed.refresh()
    followed.refresh()
    assert [(one.id, one.dropped) for one in followed.episodes] == [("a", "stale"), ("b", None)]
    assert [event["step"] for event in followed.events] == [1, 2]


@pytest.mark.parametrize("name", ["{secret}", "../secret.jsonl", "secret.jsonl", "000001.index"])
def test_a_line_does_not_choose_which_file_is_read(run: RunDir, name: str) -> None:
    followed = played(run, "a")
    secret = run.path / "secret.jsonl"
    for path in (secret, run.episodes / secret.name):
        path.write_text("a secret")
    append(run, index_line(run, id="z", file=name.format(secret=secret), offset=0, length=8))
    followed.refresh()
    assert (followed.find("z"), followed.num_unreadable) == (None, 1)


def test_a_link_out_of_the_run_is_not_followed(run: RunDir) -> None:
    followed = played(run, "a")
    secret = run.path / "secret.jsonl"
    secret.write_text("a secret")
    (run.episodes / "000002.jsonl").symlink_to(secret)
    append(run, index_line(run, id="z", file="000002.jsonl", offset=0, length=8))
    followed.refresh()
    found = followed.find("z")
    assert found is not None
    for read in (followed.text, followed.record):
        with pytest.raises(StorageError, match="leads out of its run"):
            read(found)
