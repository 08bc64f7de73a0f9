"""`kill -9` at every change that a copy to a mirror makes, and at every change of a copy back."""

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from areal_sdk.telemetry import MetricsLog, RunDir
from areal_sdk.telemetry.directories import whole_directory
from areal_sdk.telemetry.episode_log import EpisodeWriter
from areal_sdk.types import Episode, Outcome, Task
from areal_sdk_mirror.layout import names_there
from areal_sdk_mirror.store import open_store
from tests.mirror.killed import Killer, open_killer
from tests.mirror.mirrored import contents, copier_of, fetched, write_step

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def killer() -> Iterator[Killer]:
    with open_killer() as killer:
        yield killer


def take_step(run: RunDir, step: int, writer: EpisodeWriter) -> None:
    """Write what a run writes with a step."""
    for number in range(2):
        name = f"episode-{step}-{number}"
        writer.write(Episode(name, Task("task"), (), Outcome.scored(1.0)))
    log = MetricsLog(run.metrics)
    log.log("step", {"step": step})
    log.close()
    run.ledger.write_text(json.dumps({"started": 2 * step, "trained": 2 * step}))
    with whole_directory(run.checkpoints / "best") as best:
        (best / "model.safetensors").write_bytes(bytes([step]) * 50)
    write_step(run, step, keep=1)


def without_id(run: RunDir) -> dict[str, bytes]:
    """The contents of a run directory, but for the file that each copier signs anew."""
    return {name: content for name, content in contents(run).items() if name != "id.json"}


def test_a_copy_that_is_killed_anywhere_leaves_a_whole_run_that_is_brought_up_to_date(
    run: RunDir, killer: Killer, tmp_path: Path
) -> None:
    writer = EpisodeWriter(run.episodes, file_bytes=1, keep_bytes=2000)
    before, mirror = tmp_path / "before", tmp_path / "mirror"
    take_step(run, 1, writer)
    copier_of(run, open_store(str(before)), keep=1).copy(is_last=True)
    take_step(run, 2, writer)
    writer.close()
    here = without_id(run)
    seen, step = set[int](), 0
    for at in itertools.count(1):
        shutil.rmtree(mirror, ignore_errors=True)
        shutil.copytree(before, mirror)
        was_killed = killer.copy(run.path, mirror, at=at)
        store = open_store(str(mirror))
        seen.add(step := check_whole(fetched(store, tmp_path / "copy"), at))
        shutil.rmtree(tmp_path / "copy")
        if not was_killed:
            break
        copier_of(run, store, keep=1).copy(is_last=True)
        assert without_id(fetched(store, tmp_path / "copy")) == here, f"killed at change {at}"
        shutil.rmtree(tmp_path / "copy")
        folders = [name for name, size in store.sizes("checkpoints").items() if size is None]
        assert len(folders) == 2, f"killed at change {at}: {folders}"
    assert seen == {1, 2}
    assert step == 2
    assert at > 40


def check_whole(found: RunDir, at: int) -> int:
    """The step from which the run would go on; its books know of all that was before."""
    name = max(path.name for path in found.checkpoints.glob("step-*"))
    step = int(name[-1])
    where = f"killed at change {at}"
    assert (found.checkpoints / name / "model.0").read_bytes() == bytes([step]) * 100, where
    best = found.checkpoints / "best" / "model.safetensors"
    if best.exists():  # a name that is written anew is gone meanwhile
        assert best.read_bytes() in (b"\1" * 50, b"\2" * 50), where
    assert found.read_steps()[-1]["step"] >= step, where
    books = found.read_ledger()
    assert books is not None
    assert books["trained"] >= 2 * step, where
    episodes = [summary.id for summary in found.list_episodes()]
    assert len(episodes) >= 2 * step, where
    assert all(found.find_episode(episode).episode.id == episode for episode in episodes), where
    return step


def test_a_fetch_that_is_killed_anywhere_leaves_no_run_and_the_next_one_is_whole(
    run: RunDir, killer: Killer, tmp_path: Path
) -> None:
    writer = EpisodeWriter(run.episodes, file_bytes=1, keep_bytes=2000)
    take_step(run, 1, writer)
    writer.close()
    mirror, copy = tmp_path / "mirror", tmp_path / "copies" / "run"
    store = open_store(str(mirror))
    copier_of(run, store, keep=1).copy(is_last=True)
    for at in itertools.count(1):
        was_killed = killer.fetch(mirror, copy, at=at)
        if not was_killed:
            break
        if not copy.exists():
            fetched(store, copy)
        assert contents(RunDir(copy)) == contents(run), f"killed at change {at}"
        assert [path.name for path in copy.parent.iterdir()] == ["run"], f"killed at change {at}"
        shutil.rmtree(copy)
    assert at > 15
    assert names_there(store) == ["best", "step-000001"]
