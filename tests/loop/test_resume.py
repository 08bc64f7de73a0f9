"""Kill and resume: the loss curve is that of the run that was never killed, bit for bit."""

import contextlib
import io
import random
import re
import shlex
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from areal_sdk.cli.main import _run as exit_code
from areal_sdk.config import load_config, parse_config
from areal_sdk.errors import ConfigError
from areal_sdk.loop import api, runs
from areal_sdk.loop.learning.state import RunState
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.checksums import write_manifest
from areal_sdk.telemetry.token_log import steps_in
from tests.loop.runs import (
    AGENT,
    SCRIPTED,
    finish,
    inspect,
    resume_training,
    run_dir,
    start_training,
    wait_for_steps,
)
from tests.toolbox.run_records import DETERMINISTIC, STEPS, curve

KILL, INTERRUPT = signal.SIGKILL, signal.SIGINT


@pytest.mark.long
@pytest.mark.parametrize(
    ("ends", "num_steps"),
    [
        ((KILL, INTERRUPT), STEPS),
        pytest.param((KILL,) * 20, 24, marks=pytest.mark.slow),
        pytest.param((INTERRUPT,) * 4, STEPS, marks=pytest.mark.slow),
    ],
)
def test_kill_9_or_ctrl_c_and_resume_gives_the_same_losses_bit_for_bit(
    tmp_path: Path, ends: tuple[signal.Signals, ...], num_steps: int
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    # Ctrl-C saves by itself; what is killed needs a checkpoint to go on from.
    settings = DETERMINISTIC | {"run__steps": num_steps, "run__checkpoint_every": int(KILL in ends)}
    finish(start_training(whole, **settings))
    generator = random.Random(len(ends))
    moments = sorted(generator.sample(range(1, num_steps), len(ends)))
    process = start_training(broken, **settings)
    for end, moment in zip(ends, moments, strict=True):
        wait_for_steps(process, broken, moment)
        time.sleep(generator.random() * 0.2)
        process.send_signal(end)
        output, _ = process.communicate()
        assert end is KILL or "no step is lost" in output
        process = resume_training(broken)
    finish(process)
    expected, found = curve(whole), curve(broken)
    assert sorted(expected) == list(range(1, num_steps + 1))
    assert all(len(values) == 1 for values in expected.values())
    assert found == expected
    assert len({value for values in expected.values() for value in values}) > 1
    assert trained(broken) == trained(whole)
    assert recorded(broken) == recorded(whole)


def recorded(directory: Path) -> list[tuple[int, object, list[tuple[str, bytes]]]]:
    """What the files of tokens hold, by step."""
    run = run_dir(directory)
    steps = [(step, run.read_tokens(step)) for step in steps_in(run.tokens)]
    return [
        (step, tokens.about(), [(name, c.tobytes()) for name, c in tokens.columns.items()])
        for step, tokens in steps
        if tokens is not None
    ]


def trained(directory: Path) -> list[tuple[int, str]]:
    """The step and the id of each episode that was trained."""
    episodes = run_dir(directory).list_episodes()
    return sorted((e.step, e.id) for e in episodes if e.step is not None)


def test_episodes_that_a_resume_undid_are_no_part_of_the_run(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    process = start_training(tmp_path, *parts, run__steps=44, run__checkpoint_every=20)
    wait_for_steps(process, tmp_path, 23)
    process.kill()
    process.communicate()
    assert "resumed after step" in finish(resume_training(tmp_path))
    run = run_dir(tmp_path)
    (resumed,) = run.read_metrics(kind="resume")
    assert len(run.read_metrics(kind="step")) > 44 > resumed["step"]
    of_steps = Counter(step for step, _ in trained(tmp_path))
    assert of_steps == {row["step"]: row["batch/episodes"] for row in run.read_steps()}
    ids = [e.id for e in run.list_episodes()]
    assert len(ids) == len(set(ids))
    tasks = {(e.task_id, e.task_key) for e in run.list_episodes()}
    assert len(tasks) == len({task_id for task_id, _ in tasks}), "a task was another one later"
    assert steps_in(run.tokens) == [row["step"] for row in run.read_steps()]
    counted = [(step, run.read_tokens(step)) for step in steps_in(run.tokens)]
    told = {(step, s.episode_id) for step, t in counted if t is not None for s in t.sequences}
    assert sorted(told) == trained(tmp_path)


@pytest.mark.slow
def test_a_damaged_checkpoint_is_named_and_the_one_before_goes_on(tmp_path: Path) -> None:
    finish(start_training(tmp_path, run__steps=3, run__checkpoint_every=1))
    newest = run_dir(tmp_path).checkpoints / "step-000003"
    tensors = newest / "__0_0.distcp"
    content = bytearray(tensors.read_bytes())
    content[len(content) // 2] ^= 1
    tensors.write_bytes(content)
    output = finish(resume_training(tmp_path, "--steps", "4"), code=1)
    assert "step-000003 is damaged: the content of __0_0.distcp has changed" in output
    found = re.search(r"to go on from the one before, step-000002, put it aside \((.*?)\)", output)
    assert found is not None, output
    assert shlex.split(found[1]) == ["mv", str(newest), f"{newest}-damaged"]
    newest.rename(f"{newest}-damaged")
    output = finish(resume_training(tmp_path, "--steps", "4"))
    assert "resumed after step 2" in output


def test_a_dry_run_of_a_resume_says_from_where_it_goes_on_and_changes_nothing(
    tmp_path: Path,
) -> None:
    finish(start_training(tmp_path, *SCRIPTED, run__steps=1))
    before = run_dir(tmp_path).config.read_bytes(), run_dir(tmp_path).metrics.read_bytes()
    output = finish(resume_training(tmp_path, "--steps", "3", "--dry-run"))
    assert "ok: the run would go on after step 1" in output
    assert "steps = 3" in output
    refused = finish(resume_training(tmp_path, "--dry-run"), code=2)
    assert "has ended: raise its limits" in refused
    refused = finish(resume_training(tmp_path, "--set", "model=smollm2", "--dry-run"), code=2)
    assert "model" in refused
    assert before == (run_dir(tmp_path).config.read_bytes(), run_dir(tmp_path).metrics.read_bytes())


def test_a_checkpoint_without_one_of_its_files_is_refused_before_anything_starts(
    tmp_path: Path,
) -> None:
    finish(start_training(tmp_path, *SCRIPTED, run__steps=2, run__checkpoint_every=1))
    run = run_dir(tmp_path)
    newest = run.checkpoints / "step-000002"
    write_manifest(newest)
    (newest / "seen.json").write_text("[")
    before = run.metrics.read_bytes()
    told = io.StringIO()
    with contextlib.redirect_stderr(
        told
    ):  # in this process: it ends before it has started any other
        assert exit_code(("train", "--resume", str(run.path), "--steps", "3")) == 1
    assert "step-000002 is damaged: seen.json has 1 bytes instead of" in told.getvalue()
    assert "to go on from the one before, step-000001, put it aside" in told.getvalue()
    assert run.metrics.read_bytes() == before
    assert not run.is_in_use()


def test_a_run_whose_metrics_are_gone_says_so(tmp_path: Path) -> None:
    finish(start_training(tmp_path, *SCRIPTED, run__steps=2, run__checkpoint_every=1))
    run = run_dir(tmp_path)
    assert "metrics.jsonl" not in inspect(str(run.path))
    run.metrics.unlink()
    lost = "curves and evaluations of steps 1 to 2 are lost"
    assert f"metrics.jsonl is gone: {lost}" in inspect(str(run.path))
    output = finish(resume_training(tmp_path, "--steps", "3"))
    assert f"warning: metrics.jsonl ends at step 0: {lost}" in output
    assert [row["step"] for row in run.read_steps()] == [3]


def test_a_save_that_was_killed_leaves_nothing_once_the_run_goes_on(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    finish(start_training(tmp_path, *parts, run__steps=1))
    directory = run_dir(tmp_path).checkpoints
    (directory / ".step-000002.partial").mkdir()
    (directory / "step-000001-good").mkdir()  # somebody's copy
    finish(resume_training(tmp_path, "--steps", "3"))
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["final", "step-000001", "step-000001-good", "step-000003"]


def test_resuming_a_run_that_still_goes_on_changes_nothing_in_it(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    config = parse_config({"agent": str(AGENT), "model": "tiny"})
    run.write_config(config.model_dump(mode="json", exclude_none=True))
    with run.in_use():
        before = {path.name: path.read_bytes() for path in run.path.iterdir()}
        with pytest.raises(ConfigError, match="still going on"):
            api.resume_training(run.path, settings=["run.steps=7"], quiet=True)
        after = {path.name: path.read_bytes() for path in run.path.iterdir()}
    assert after == before


def test_a_run_is_resumed_from_another_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project").mkdir()
    shutil.copy(AGENT, tmp_path / "project" / "mine.py")
    monkeypatch.chdir(tmp_path / "project")
    plan = api._plan(parse_config({"agent": "mine.py", "model": "tiny", "run": {"dir": "runs"}}))
    run = RunDir.create(plan.config.run.dir, "run")
    runs.write_config(run, plan.config, plan.plugins)
    monkeypatch.chdir(tmp_path)
    api.check(load_config(file=Path("project/runs/run/config.toml")))


def test_a_checkpoint_that_stores_more_than_the_state_has_is_read() -> None:
    stored = {**RunState(step=7).to_json(), "version": 7, "best_success": 0.5, "best_step": 7}
    state = RunState()
    state.update_from(stored)
    assert state == RunState(step=7)
    assert state.version == 7
