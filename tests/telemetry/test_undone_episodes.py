"""Episodes that a resume undid are no part of the run, however often the run was killed."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from areal_sdk.telemetry.episode_log import EpisodeWriter, find_episode, list_episodes
from areal_sdk.telemetry.ledger import DropReason
from areal_sdk.trajectory import Credit
from areal_sdk.types import Episode, ErrorKind, Outcome, Task


class Written:
    """A run's episodes, written in the order of a run: one episode a group, one group a task."""

    def __init__(self, directory: Path, *, file_bytes: int) -> None:
        self.writer = EpisodeWriter(directory, file_bytes=file_bytes)
        self.waiting: list[str] = []

    def end(self, *groups: str, life: int, split: str = "train", after: int | None = None) -> None:
        for group in groups:
            outcome = Outcome.scored(float(life))
            episode = Episode(f"{group}.0", Task(group), (), outcome, group=group)
            self.writer.write(episode, split=split, measures=after)
            if split == "train":
                self.waiting.append(group)

    def fail(self, group: str, *, life: int) -> None:
        failed = Outcome.failed(ErrorKind.AGENT, f"life {life}")
        episode = Episode(f"{group}.0", Task(group), (), failed, group=group)
        self.writer.write(episode, dropped=DropReason.ERROR_AGENT)

    def step(self, step: int, *groups: str) -> None:
        self.waiting = [group for group in self.waiting if group not in groups]
        self.writer.mark_taken(step, waiting=self.waiting)
        self.writer.mark_trained({f"{group}.0": Credit(0.5) for group in groups}, step=step)

    def resume(self, step: int | None) -> None:
        self.waiting = []
        self.writer.mark_resumed(step)


def counted(directory: Path) -> list[tuple[str, float | None, int | None]]:
    """The id, the life (as reward) and the step of each episode that counts, oldest first."""
    return [(e.id, e.reward, e.step) for e in reversed([*list_episodes(directory)])]


@pytest.fixture(params=[1, 1 << 20], ids=["a file each", "one file"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterable[Written]:
    written = Written(tmp_path, file_bytes=request.param)
    yield written
    written.writer.close()


def test_what_a_resume_undid_is_played_again_and_counts_once(run: Written, tmp_path: Path) -> None:
    run.end("a", "b", "shed", "c", life=1)
    run.waiting.remove("shed")  # it taught nothing
    run.fail("bad", life=1)
    run.step(1, "a", "b")
    run.end("d", "e", life=1)
    run.fail("worse", life=1)
    run.step(2, "c", "d")
    run.end("f", life=1)  # and the run is killed
    run.resume(1)
    run.end("c", "d", "e", life=2)
    run.fail("worse", life=2)
    run.step(2, "c", "e")
    assert counted(tmp_path) == [
        ("a.0", 1.0, 1),
        ("b.0", 1.0, 1),
        ("shed.0", 1.0, None),
        ("bad.0", None, None),
        ("c.0", 2.0, 2),
        ("d.0", 2.0, None),
        ("e.0", 2.0, 2),
        ("worse.0", None, None),
    ]


def test_an_undone_episode_is_found_if_there_is_no_other(run: Written, tmp_path: Path) -> None:
    run.end("a", "b", life=1)
    run.step(1, "a")
    run.step(2, "b")
    run.resume(1)
    undone = find_episode(tmp_path, "b.0")
    assert undone is not None
    assert (undone.is_undone, undone.step) == (True, 2)
    run.end("b", life=2)
    again = find_episode(tmp_path, "b.0")
    assert again is not None
    assert (again.is_undone, again.step, again.episode.outcome.reward) == (False, None, 2.0)
    kept = find_episode(tmp_path, "a.0")
    assert kept is not None
    assert (kept.is_undone, kept.step) == (False, 1)


def test_a_run_that_was_resumed_again_and_again_has_each_step_once(
    run: Written, tmp_path: Path
) -> None:
    for life, (resumed, last) in enumerate([(0, 5), (3, 7), (2, 4), (2, 6), (6, 8)], start=1):
        if life > 1:
            run.resume(resumed)
        for step in range(resumed + 1, last + 1):
            run.end(f"g{step}", life=life)
            run.step(step, f"g{step}")
    assert [(life, step) for _, life, step in counted(tmp_path)] == [
        (1.0, 1), (1.0, 2), (4.0, 3), (4.0, 4), (4.0, 5), (4.0, 6), (5.0, 7), (5.0, 8),
    ]  # fmt: skip


def test_a_run_that_begins_anew_keeps_nothing(run: Written, tmp_path: Path) -> None:
    run.end("before-eval.x", life=1, split="eval", after=0)
    run.end("a", life=1)
    run.step(1, "a")
    run.resume(None)
    run.end("before-eval.x", life=2, split="eval", after=0)
    assert counted(tmp_path) == [("before-eval.x.0", 2.0, None)]


def test_evaluations_of_undone_steps_go_and_callers_sessions_stay(
    run: Written, tmp_path: Path
) -> None:
    run.end("step-1-eval.x", life=1, split="eval", after=1)
    run.end("caller", life=1, split="live")
    run.step(2, "caller")
    run.end("step-2-eval.x", life=1, split="eval", after=2)
    run.resume(1)
    assert counted(tmp_path) == [("step-1-eval.x.0", 1.0, None), ("caller.0", 1.0, None)]


def test_a_run_of_an_older_version_that_goes_on_keeps_what_it_had(
    run: Written, tmp_path: Path
) -> None:
    for step in (1, 2, 3):
        run.end(f"shed{step}", f"g{step}", life=1)
        run.writer.mark_trained({f"g{step}.0": Credit(0.5)}, step=step)
    run.resume(2)
    assert [name for name, *_ in counted(tmp_path)] == ["shed1.0", "g1.0", "g2.0"]


def test_what_callers_played_stays_when_their_server_is_resumed(
    run: Written, tmp_path: Path
) -> None:
    run.end("a", "b", life=1)
    run.step(1, "a")
    run.end("c", life=1)
    run.step(2, "b")
    run.writer.mark_resumed(1, plays_again=False)
    run.end("b", life=2)
    run.step(2, "b")
    assert counted(tmp_path) == [
        ("a.0", 1.0, 1),
        ("b.0", 1.0, None),
        ("c.0", 1.0, None),
        ("b.0", 2.0, 2),
    ]
