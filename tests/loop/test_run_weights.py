"""A run's weights are there to use, finished or not: by its name, or by one of its checkpoints."""

import os
import shutil
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from areal_sdk.errors import ConfigError
from areal_sdk.loop.plan.models import find_model, find_origin
from areal_sdk.models import make_tiny_model
from areal_sdk.telemetry import RunDir
from tests.loop.runs import (
    AGENT,
    SCRIPTED_ENGINE,
    finish,
    run_dir,
    start_command,
    start_training,
    wait_for_steps,
)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped before its end, and has exported nothing."""
    directory = tmp_path_factory.mktemp("interrupted")
    process = start_training(
        directory, *SCRIPTED_ENGINE, run__steps=10_000, run__checkpoint_every=1
    )
    wait_for_steps(process, directory, 2)
    process.send_signal(signal.SIGINT)
    finish(process, code=1)
    return run_dir(directory).path


@pytest.mark.long
def test_an_interrupted_run_is_evaluated_with_its_last_checkpoint(interrupted: Path) -> None:
    output = finish(
        start_command(
            *("eval", str(AGENT), "--model", str(interrupted)),
            *("--set", "eval.tasks=1", "--set", "rollout.max_new_tokens=4"),
        )
    )
    assert "is not finished: the weights are those of step-" in output
    assert "success" in output


def test_each_checkpoint_is_a_model_and_its_weights_are_what_was_trained(interrupted: Path) -> None:
    older, newest = sorted((interrupted / "checkpoints").glob("step-*"))
    models = [find_model(str(checkpoint)) for checkpoint in (older, newest)]
    weights = [load_file(model / "model.safetensors") for model in models]
    assert any(not weights[0][name].equal(weights[1][name]) for name in weights[0])
    assert find_model(str(interrupted)) == models[1]
    assert (models[0] / "tokenizer.json").is_file()
    assert load_file(models[1] / "model.safetensors").keys() == weights[0].keys()


def test_a_finished_run_that_was_begun_again_gives_what_it_learnt_last(
    interrupted: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(interrupted, run)
    final, latest = run / "checkpoints" / "final", max((run / "checkpoints").glob("step-*"))
    shutil.copytree(find_model(str(latest)), final)
    state = (latest / "trainer.json").stat()
    os.utime(final / "config.json", (state.st_atime + 1, state.st_mtime + 1))
    assert find_model(str(run)) == final
    os.utime(final / "config.json", (state.st_atime - 1, state.st_mtime - 1))
    assert find_model(str(run)) == latest / "export"


def test_what_is_no_checkpoint_of_a_run_says_which_there_are(
    interrupted: Path, tmp_path: Path
) -> None:
    newest = max((interrupted / "checkpoints").glob("step-*"))
    with pytest.raises(ConfigError, match=f"no step-7 in .*; there: .*{newest.name}"):
        find_model(str(interrupted / "checkpoints" / "step-7"))
    shutil.copytree(newest, tmp_path / "a" / newest.name, ignore=shutil.ignore_patterns("export"))
    with pytest.raises(ConfigError, match="a checkpoint without its run"):
        find_model(str(tmp_path / "a" / newest.name))


def test_a_checkpoint_that_cannot_be_read_is_one_line(interrupted: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(interrupted, run, ignore=shutil.ignore_patterns("export", "*.distcp"))
    with pytest.raises(ConfigError, match="cannot be exported") as error:
        find_model(str(run))
    assert "\n" not in str(error.value)


def test_a_resume_begins_with_the_weights_that_the_run_began_with(tmp_path: Path) -> None:
    run, (final, best) = RunDir(tmp_path / "run"), [tmp_path / name for name in ("final", "best")]
    run.path.mkdir()
    make_tiny_model(final, seed=0)
    make_tiny_model(best, seed=1)  # what another run has by the time of the resume
    assert find_origin(final, run, must_be_same=True) == final
    assert find_origin(best, run, must_be_same=True) == final
    shutil.move(final, tmp_path / "moved")
    assert find_origin(tmp_path / "moved", run, must_be_same=True) == tmp_path / "moved"
    with pytest.raises(ConfigError, match="have changed since the run began"):
        find_origin(best, run, must_be_same=True)
    assert find_origin(best, run, must_be_same=False) == best  # a checkpoint has the weights


@pytest.mark.long
def test_a_run_begins_with_the_weights_of_an_interrupted_one_and_needs_it_no_more(
    interrupted: Path, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    shutil.copytree(interrupted, first)
    begin = (*SCRIPTED_ENGINE, "--init-from", str(first))
    finish(start_training(tmp_path, *begin, run__steps=1, run__checkpoint_every=1))
    assert len(run_dir(tmp_path).read_steps()) == 1
    shutil.rmtree(first)
    (checkpoint,) = run_dir(tmp_path).checkpoints.glob("step-*")
    model = find_model(str(checkpoint))
    assert (model / "tokenizer.json").is_file()
    assert load_file(model / "model.safetensors")


def test_a_built_in_model_is_found_by_its_name_also_in_a_folder_of_runs(
    interrupted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(interrupted.parent)
    assert (find_model("tiny") / "config.json").is_file()
    with pytest.raises(ConfigError, match="no such run: nope"):
        find_model("nope")
