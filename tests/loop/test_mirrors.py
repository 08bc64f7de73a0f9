"""`run.mirror`: a run whose machine is gone goes on from its mirror, as from its own directory."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from areal_sdk.errors import ConfigError
from areal_sdk.loop.mirrored import open_run
from areal_sdk.telemetry import RunDir
from areal_sdk_mirror.layout import names_there
from areal_sdk_mirror.store import Store, open_store
from tests.loop.runs import (
    AGENT,
    DEADLINE_S,
    SCRIPTED,
    finish,
    inspect,
    readable_by_others,
    refused,
    run_dir,
    start_command,
    start_training,
    told,
)
from tests.toolbox.run_records import DETERMINISTIC, STEPS, curve

Process = subprocess.Popen[str]


def mirror_of(directory: Path) -> Path:
    """The place of the mirror. Its last part is the name of the run directory of a copy."""
    return directory / "shared" / "run"


def start_mirrored(directory: Path, *parts: str, **settings: Any) -> Process:
    mirror = mirror_of(directory)
    return start_training(directory, *parts, run__mirror=mirror, run__name="run", **settings)


def resume_mirror(directory: Path, *arguments: str) -> Process:
    return start_command("train", "--resume", str(mirror_of(directory)), *arguments)


def wait_for_copy(process: Process, directory: Path, *, after: int = 0) -> None:
    """Return as soon as the files of a checkpoint later than `after` begin to appear at the mirror."""
    deadline = time.monotonic() + DEADLINE_S
    while not any(
        int(path.name[5:11]) > after
        for path in (mirror_of(directory) / "checkpoints").glob("step-*.*/")
    ):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.002)


def lose_machine(process: Process, directory: Path) -> None:
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    shutil.rmtree(directory / "run")


def steps_there(store: Store) -> list[str]:
    """The names of the checkpoints at the mirror, without those that the guard keeps."""
    return [name for name in names_there(store) if name.startswith("step-")]


def test_a_run_whose_machine_is_gone_goes_on_from_its_mirror(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    process = start_mirrored(tmp_path, *parts, run__steps=10_000, run__checkpoint_every=2)
    store = open_store(str(mirror_of(tmp_path)))
    wait_for_copy(process, tmp_path)
    deadline = time.monotonic() + DEADLINE_S
    while not steps_there(store):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    (name, *_) = steps_there(store)
    wait_for_copy(process, tmp_path, after=int(name[5:]))
    lose_machine(process, tmp_path)
    saved = int(steps_there(store)[-1][5:])
    last = saved + 3
    output = finish(resume_mirror(tmp_path, "--steps", str(last)))
    assert f"resumed after step {saved}" in output
    run = run_dir(tmp_path)
    assert [row["step"] for row in run.read_steps()] == list(range(1, last + 1))
    books = run.read_ledger()
    assert books is not None
    assert books["running"] == 0
    assert books["trained"] == 16 * last
    # The mirror has the end of the run too, and is as good as its directory.
    there = RunDir.open(mirror_of(tmp_path))
    assert there.read_metrics() == run.read_metrics()
    assert [e.id for e in there.list_episodes()] == [e.id for e in run.list_episodes()]
    assert names_there(store)[-1] == f"step-{last:06d}"
    assert len(steps_there(store)) == 2
    assert (there.path / "report.html").is_file()
    assert f"step {last}" in inspect(str(there.path))
    evaluation = ("eval", str(AGENT), "--model", str(there.path))
    for command in (("export", str(there.path), "--to", "x"), evaluation):
        assert f"areal-sdk fetch {there.path}" in refused(*command)
    copy = tmp_path / "copy"
    finish(start_command("fetch", str(there.path), "--to", str(copy)))
    assert (RunDir.open(copy).checkpoints / "final" / "config.json").is_file()
    assert readable_by_others(there.path) == readable_by_others(copy) == []
    # The run goes on, and is killed: nothing tells of its former end as if that was now.
    process = start_command("train", "--resume", str(run.path), "--steps", "10000")
    wait_for_copy(process, tmp_path, after=last + 2)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert not run.report.exists()
    assert not (there.path / "report.html").exists()
    finish(start_command("fetch", str(there.path), "--to", str(tmp_path / "second")))
    report = (tmp_path / "second" / "report.html").read_text()
    assert "interrupted</p>" in report
    assert RunDir(tmp_path / "second").read_began() == run.read_began()


@pytest.mark.parametrize(
    "command",
    [
        ("inspect", "s3://bucket/run"),
        ("runs", "s3://bucket/run"),
        ("export", "s3://bucket/run", "--to", "x"),
        ("serve", "--model", "s3://bucket/run"),
        ("train", str(AGENT), "--init-from", "s3://bucket/run"),
    ],
)
def test_a_command_that_reads_directories_says_how_to_fetch_a_mirror(
    command: tuple[str, ...],
) -> None:
    assert "areal-sdk fetch s3://bucket/run" in refused(*command)


@pytest.mark.long
def test_a_mirror_has_one_run_and_one_directory_that_is_not_behind(tmp_path: Path) -> None:
    finish(start_mirrored(tmp_path, *SCRIPTED, run__steps=1))
    other = tmp_path / "other"
    said = finish(
        start_training(other, *SCRIPTED, run__mirror=mirror_of(tmp_path), run__steps=1), code=2
    )
    assert "holds another run: give this run a mirror of its own" in said
    assert f"--resume {mirror_of(tmp_path)}" in said
    assert not (other / "run").exists()
    said = finish(start_training(other, *SCRIPTED, run__mirror="/proc/nowhere"), code=2)
    assert "run.mirror = '/proc/nowhere' cannot be read or written" in said
    assert not (other / "run").exists()
    (tmp_path / "full" / "checkpoints").mkdir(parents=True)
    for place, problem in {
        "full": "is no mirror and holds checkpoints: a mirror removes what is not its own",
        "other/run/checkpoints/mirror": "lie in one another",
    }.items():
        said = finish(start_training(other, *SCRIPTED, run__mirror=str(tmp_path / place)), code=2)
        assert problem in said
    # The run goes on elsewhere: the directory that it left must not take the mirror back.
    (tmp_path / "run").rename(tmp_path / "left")
    finish(resume_mirror(tmp_path, "--steps", "3"))
    left = RunDir(tmp_path / "left")
    before = {path: path.read_bytes() for path in left.path.glob("[!.]*.*")}
    said = finish(start_command("train", "--resume", str(left.path), "--steps", "2"), code=2)
    assert {path: path.read_bytes() for path in left.path.glob("[!.]*.*")} == before
    assert "is ahead of" in said
    assert "(step 3 against step 1)" in said
    assert finish(resume_mirror(tmp_path), code=2).count("exists: a run that is fetched") == 1


def test_a_mirror_that_cannot_be_read_is_an_error_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "mirror.json").write_text('{"id": "one"}')
    (tmp_path / "config.toml").write_text("no TOML")
    with pytest.raises(
        ConfigError, match=r"cannot be read or written \(TOMLDecodeError.*see to the address"
    ):
        open_run(tmp_path)


def test_ctrl_c_ends_the_wait_for_a_mirror_that_hangs_and_the_run_has_ended(tmp_path: Path) -> None:
    checkpoints = mirror_of(tmp_path) / "checkpoints"
    checkpoints.mkdir(parents=True)
    # Of a run that was refused or killed before it had weights: whoever comes next may take it.
    (mirror_of(tmp_path) / "mirror.json").write_text('{"id": "another"}')
    os.mkfifo(checkpoints / ".step-000001.json.partial")  # to open it for writing takes a reader
    process = start_mirrored(tmp_path, *SCRIPTED, run__steps=1)
    assert process.stdout is not None
    assert told(process.stdout, "(waits for the mirror)")
    process.send_signal(signal.SIGINT)
    output = finish(process)
    assert "lacks final, step-000001" in output
    assert f"to bring it up to date: areal-sdk train --resume {tmp_path / 'run'}" in output
    assert "ended: steps" in output
    (checkpoints / ".step-000001.json.partial").unlink()
    finish(start_command("train", "--resume", str(tmp_path / "run")))
    assert names_there(open_store(str(mirror_of(tmp_path)))) == ["final", "step-000001"]


@pytest.mark.long
@pytest.mark.parametrize(
    "kills_after", [(2,), pytest.param((1, 2, 3, 4, 5, 6), marks=pytest.mark.slow)]
)
def test_kill_9_in_mid_copy_and_resume_from_the_mirror_gives_the_same_losses_bit_for_bit(
    kills_after: tuple[int, ...], tmp_path: Path
) -> None:
    whole, lost = tmp_path / "whole", tmp_path / "lost"
    settings = DETERMINISTIC | {"run__checkpoint_every": 1}
    finish(start_training(whole, **settings))
    process = start_mirrored(lost, **settings)
    for step in kills_after:
        wait_for_copy(process, lost, after=step)
        lose_machine(process, lost)
        process = resume_mirror(lost)
    finish(process)
    expected, found = curve(whole), curve(lost)
    assert sorted(expected) == list(range(1, STEPS + 1))
    assert found == expected
