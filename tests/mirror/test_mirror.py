"""The mirror of a run directory: whole or not there, kept up to date, and fetched as it was."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from areal_sdk.config import RunSection, parse_config
from areal_sdk.errors import ConfigError, DamagedError
from areal_sdk.errors.packages import Package
from areal_sdk.loop.api import check
from areal_sdk.loop.mirrored import Mirroring, open_run
from areal_sdk.records import list_files, list_weights
from areal_sdk.telemetry import MetricsLog, RunDir
from areal_sdk.telemetry.directories import whole_directory
from areal_sdk.telemetry.episode_log import EpisodeWriter
from areal_sdk.types import Episode, Outcome, Task
from areal_sdk_mirror.keeper import MirrorKeeper
from areal_sdk_mirror.layout import Whole, names_there
from areal_sdk_mirror.store import FolderStore, FsspecStore, Store, open_store
from tests.mirror.mirrored import contents, copier_of, fetched, write_step
from tests.toolbox.waiting import wait_until

DEADLINE_S = 60.0


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    if request.param == "folder":
        yield open_store(str(tmp_path / "shared" / "run"))
        return
    found = open_store(f"memory://bucket/{tmp_path.name}/run")
    assert isinstance(found, FsspecStore)
    yield found
    found.remove("")


def test_a_run_comes_back_as_it_was(store: Store, run: RunDir, tmp_path: Path) -> None:
    log = MetricsLog(run.metrics)
    log.log("step", {"step": 1})
    run.model.mkdir()
    (run.model / "config.json").write_text("{}")
    write_step(run, 1)
    run.write_live({"pid": 1})
    run.logs.mkdir()
    (run.logs / "engine.log").write_text("AWS_SECRET=1")
    copier = copier_of(run, store)
    assert "step-000001" in copier.missing()
    assert copier.copy(is_last=True)
    assert copier.missing() == []
    found = fetched(store, tmp_path / "other" / "run")
    here = contents(run)
    assert here.pop("live.json")
    assert here.pop("logs/engine.log")
    assert contents(found) == here
    assert b"sk-secret-1" not in b"".join(contents(found).values())


def test_old_checkpoints_replaced_weights_and_old_episodes_go_there_too(
    store: Store, run: RunDir, tmp_path: Path
) -> None:
    copier = copier_of(run, store)
    writer = EpisodeWriter(run.episodes, file_bytes=1, keep_bytes=2000)
    for step in (1, 2, 3):
        write_step(run, step)
        with whole_directory(run.checkpoints / "best") as best:
            (best / "model.safetensors").write_bytes(bytes([step]) * 10)
        for number in range(4):
            name = f"episode-{step}-{number}"
            writer.write(Episode(name, Task("task"), (), Outcome.scored(1.0)))
        copier.copy()
    assert names_there(store) == ["best", "step-000002", "step-000003"]
    folders = [name for name, size in store.sizes("checkpoints").items() if size is None]
    assert len(folders) == 3
    writer.close()
    copier.copy(is_last=True)
    assert set(store.sizes("episodes")) == {path.name for path in run.episodes.iterdir()}
    found = fetched(store, tmp_path / "copy")
    assert (found.checkpoints / "best" / "model.safetensors").read_bytes() == b"\3" * 10
    assert [e.id for e in found.list_episodes()] == [e.id for e in run.list_episodes()]


class Broken(FolderStore):
    """Fails from the `num_good`-th file on, until it is mended."""

    num_good = 1000
    is_read_broken = False

    def put(self, source: Path, key: str) -> None:
        self._count()
        super().put(source, key)

    def write(self, key: str, content: bytes) -> None:
        self._count()
        super().write(key, content)

    def _count(self) -> None:
        self.num_good -= 1
        if self.num_good < 0:
            raise OSError("the network is away")


@pytest.mark.parametrize("num_good", range(9))
def test_what_was_cut_off_anywhere_shows_the_checkpoint_before_and_is_finished_later(
    num_good: int, run: RunDir, tmp_path: Path
) -> None:
    store = Broken(tmp_path / "shared")
    write_step(run, 1, keep=1)
    copier_of(run, store, keep=1).copy()
    write_step(run, 2, keep=1)
    MetricsLog(run.metrics).log("step", {"step": 2})
    store.num_good = num_good
    with suppress(OSError):
        copier_of(run, store, keep=1).copy()  # of another process: it knows nothing of the first
    (name,) = names_there(store)
    found = fetched(store, tmp_path / "copy")
    assert (found.checkpoints / name / "model.0").read_bytes() == bytes([int(name[-1])]) * 100
    assert name == "step-000001" or found.read_steps()[-1]["step"] == 2, "the books come first"
    store.num_good = 1000
    assert copier_of(run, store, keep=1).copy(is_last=True)
    assert names_there(store) == ["step-000002"]
    assert len(store.sizes("checkpoints")) == 2


@pytest.mark.parametrize("harm", ["content", "length", "gone", "marker"])
def test_what_was_damaged_there_is_named_with_the_way_around_it(
    harm: str, run: RunDir, tmp_path: Path
) -> None:
    shared = tmp_path / "shared"
    store = open_store(str(shared))
    write_step(run, 1)
    copier_of(run, store).copy()
    (file,) = (shared / "checkpoints").glob("step-000001.*/model.0")
    marker = shared / "checkpoints" / "step-000001.json"
    match harm:
        case "content":
            file.write_bytes(b"x" + file.read_bytes()[1:])
        case "length":
            file.write_bytes(b"x")
        case "gone":
            file.unlink()
        case _:
            marker.write_text(marker.read_text().replace("100", "101"))
    with pytest.raises(DamagedError) as caught:
        fetched(store, tmp_path / "copy")
    assert f"remove {marker}" in str(caught.value)
    assert ("model.0" if harm != "marker" else "has changed since") in str(caught.value)
    assert not (tmp_path / "copy").exists()


def test_a_checkpoint_that_is_replaced_while_it_is_copied_is_copied_again(
    run: RunDir, tmp_path: Path
) -> None:
    class Slow(FolderStore):
        then: Callable[[], object] | None = None

        def put(self, source: Path, key: str) -> None:
            super().put(source, key)
            if self.then is not None:
                then, self.then = self.then, None
                then()

    store = Slow(tmp_path / "shared")
    copier = copier_of(run, store)
    write_step(run, 1)
    store.then = lambda: write_step(run, 1, size=200)
    copier.copy()
    copy = fetched(store, tmp_path / "copy")
    assert (copy.checkpoints / "step-000001" / "model.0").stat().st_size == 200
    [folder] = [name for name, size in store.sizes("checkpoints").items() if size is None]
    assert folder.startswith("step-000001.")


def test_a_mirror_slower_than_the_run_holds_its_newest_checkpoint(
    run: RunDir, tmp_path: Path
) -> None:
    class Slow(FolderStore):
        def put(self, source: Path, key: str) -> None:
            super().put(source, key)
            if key.startswith("checkpoints/") and step < 9:
                write_next()

    step = 0

    def write_next() -> None:
        nonlocal step
        step += 1
        write_step(run, step, keep=1)

    store = Slow(tmp_path / "shared")
    copier = copier_of(run, store, keep=1)
    write_next()
    copier.copy()
    assert names_there(store) == ["step-000009"]
    assert [name for name, size in store.sizes("checkpoints").items() if size is None] == [
        Whole.read(store, "step-000009").folder.partition("/")[2]  # type: ignore[union-attr]
    ]
    assert fetched(store, tmp_path / "copy").checkpoints.is_dir()
    assert sorted(path.name for path in run.checkpoints.iterdir()) == ["step-000009"]


def test_who_wrote_before_writes_no_more_and_says_so(
    run: RunDir, store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_step(run, 1)
    first = copier_of(run, store)
    first.copy()
    elsewhere = fetched(store, tmp_path / "elsewhere")
    second = copier_of(elsewhere, store)
    write_step(elsewhere, 2)
    second.copy()
    write_step(run, 3)
    (run.path / "report.html").write_text("of the first")
    keeper = MirrorKeeper(first, url="the mirror", how_to_resume="resume it")
    keeper.begin()
    wait_until(lambda: "is left alone from now on: the run goes on elsewhere" in caplog.text)
    keeper.finish(within_s=DEADLINE_S)
    assert names_there(store) == ["step-000001", "step-000002"]
    assert store.read("report.html") is None
    assert "lacks" not in caplog.text


def test_only_what_a_copy_left_is_removed(run: RunDir, store: Store) -> None:
    store.write("checkpoints/of-the-user/model", b"1")
    store.write("checkpoints/step-000000.0a1b2c3d/model", b"1")
    write_step(run, 1)
    copier_of(run, store).copy()
    left = {name for name, size in store.sizes("checkpoints").items() if size is None}
    assert {name.partition(".")[0] for name in left} == {"of-the-user", "step-000001"}


def test_no_index_at_the_mirror_names_a_line_that_is_not_there(run: RunDir, tmp_path: Path) -> None:
    class Growing(FolderStore):
        def put(self, source: Path, key: str) -> None:
            super().put(source, key)
            if source.suffix == ".episodes" and key.startswith("episodes"):
                grow()

    def grow() -> None:
        with (run.episodes / "000001.index").open("a") as index:
            index.write("a line\n")
        with (run.episodes / "000001.episodes").open("a") as lines:
            lines.write("an episode\n")

    run.episodes.mkdir(exist_ok=True)
    grow()
    store = Growing(tmp_path / "shared")
    copier_of(run, store).copy(is_last=True)
    lines, index = (store.read(f"episodes/000001{suffix}") for suffix in (".episodes", ".index"))
    assert lines is not None
    assert index is not None
    assert index.count(b"\n") <= lines.count(b"\n")


def test_a_mirror_that_fails_is_said_once_and_is_up_to_date_in_the_end(
    run: RunDir, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("areal_sdk_mirror.keeper.FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr("areal_sdk_mirror.keeper.MAX_PAUSE_S", 0.02)
    store = Broken(tmp_path / "shared")
    keeper = MirrorKeeper(copier_of(run, store), url=store.url, how_to_resume="resume it")
    store.num_good = 0
    keeper.begin()
    write_step(run, 1)
    wait_until(lambda: store.num_good < -5)
    store.num_good = 1000
    keeper.finish(within_s=DEADLINE_S)
    wait_until(lambda: "is up to date again" in caplog.text)
    assert names_there(store) == ["step-000001"]
    failures, recovery = (
        [m for m in caplog.messages if part in m] for part in ("cannot be written", "again")
    )
    assert len(failures) == 1
    assert "the network is away" in failures[0]
    assert "--set run.mirror=" in failures[0]
    assert recovery


def test_a_mirror_that_hangs_holds_nobody_and_what_is_missing_is_named(
    run: RunDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    is_let_go = threading.Event()

    class Hanging(FolderStore):
        def put(self, source: Path, key: str) -> None:
            is_let_go.wait()

    caplog.set_level(logging.WARNING)
    write_step(run, 1)
    copier = copier_of(run, Hanging(tmp_path / "shared"))
    keeper = MirrorKeeper(copier, url="the mirror", how_to_resume="areal-sdk train --resume X")
    keeper.begin()
    keeper.finish(within_s=0.1)
    is_let_go.set()
    assert "lacks step-000001, began.json, config.toml" in caplog.text
    assert "to bring it up to date: areal-sdk train --resume X" in caplog.text


def test_what_is_no_mirror_or_cannot_be_reached_is_refused_with_the_cure(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run is mirrored at"):
        fetched(open_store(str(tmp_path)), tmp_path / "copy")
    with pytest.raises(ConfigError, match="no-such-scheme://x cannot be reached"):
        open_store("no-such-scheme://x")
    with pytest.raises(ConfigError, match="areal-sdk fetch s3://bucket/run"):
        RunDir.open(Path("s3://bucket/run"))


def test_without_the_package_a_mirror_is_refused_with_the_line_to_install(
    run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Package, "is_installed", False)
    section = RunSection(mirror=str(tmp_path / "mirror"))
    config = parse_config({"agent": "agent.py", "run": {"mirror": section.mirror}})
    for refused in (
        lambda: Mirroring(run, section).begin(),
        lambda: open_run("s3://bucket/run"),
        lambda: check(config),
    ):
        with pytest.raises(ConfigError, match=r"'run\.mirror' comes with areal-sdk-mirror: pip "):
            refused()
    assert not (tmp_path / "mirror").exists()


def test_a_run_lists_its_parts_and_leaves_out_those_of_the_machine(run: RunDir) -> None:
    writer = EpisodeWriter(run.episodes, file_bytes=1)
    for number in range(2):
        writer.write(Episode(f"episode-{number}", Task("task"), (), Outcome.scored(1.0)))
    writer.close()
    run.write_live({"pid": 1})
    run.logs.mkdir()
    (run.logs / "engine.log").touch()
    (run.path / "flight.jsonl").touch()
    (run.path / ".lock").touch()
    write_step(run, 1)
    (run.checkpoints / ".step-000002.partial").mkdir()
    assert [part.key for part in list_weights(run.path)] == ["checkpoints/step-000001"]
    files = {part.key: part for part in list_files(run.path)}
    assert [*files] == [
        "began.json",
        "config.toml",
        "episodes/000001.episodes",
        "episodes/000001.index",
        "episodes/000002.episodes",
        "episodes/000002.index",
    ]
    assert [key for key, part in files.items() if part.grows] == [*files][4:]
    assert [key for key, part in files.items() if part.is_index] == [*files][3::2]
