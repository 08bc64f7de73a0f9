"""The files that `init` writes pass their own tests."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from areal_sdk.cli.init import init
from areal_sdk.errors import ConfigError


def make(directory: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.chdir(directory)
    result = CliRunner().invoke(init, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def run_pytest(directory: Path, *paths: Path) -> None:
    path = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")])
    output = run_python(directory, "-m", "pytest", "-q", "-p", "no:cacheprovider", path=path)
    assert "passed" in output


def run_python(directory: Path, *arguments: str, path: str | Path = "") -> str:
    """Run Python and return what it prints. Fails if it fails."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def test_an_agent_from_the_template_passes_its_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = make(tmp_path, monkeypatch, "agent", "word-count")
    assert "areal-sdk train word_count.py" in output
    assert "class WordCount(Agent)" in (tmp_path / "word_count.py").read_text()
    run_pytest(tmp_path)


@pytest.mark.parametrize("kind", ["plugin", "environment"])
def test_a_distribution_from_the_template_is_found_and_passes_its_tests(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = make(tmp_path, monkeypatch, kind, "areal-sdk-short")
    assert "areal-sdk train --env areal_sdk_short --tasks areal_sdk_short" in output
    project, site = tmp_path / "areal-sdk-short", tmp_path / "site"
    info = site / "areal_sdk_short-0.1.0.dist-info"  # as `pip install -e` would
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: areal-sdk-short\nVersion: 0.1.0\n")
    entry = "[areal_sdk]\nareal_sdk_short = areal_sdk_short\n"
    (info / "entry_points.txt").write_text(entry)
    declared = (project / "pyproject.toml").read_text()
    assert 'areal_sdk_short = "areal_sdk_short"' in declared
    assert 'name = "areal-sdk-short"' in declared
    assert (project / ".github" / "workflows" / "test.yml").is_file()
    assert "the authors of areal-sdk-short" in (project / "LICENSE").read_text()
    run_pytest(project, site, project)


@pytest.mark.slow
def test_a_new_environment_is_built_found_in_its_wheel_checked_and_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of a stranger, from the template to weights, with the wheel alone on the path."""
    make(tmp_path, monkeypatch, "environment", "areal-sdk-maze")
    site = tmp_path / "site"
    build = ["-m", "build", "--wheel", "--no-isolation", "--outdir", "dist", "areal-sdk-maze"]
    run_python(tmp_path, *build)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:  # what `pip install` of a pure wheel does
        archive.extractall(site)
        assert "areal_sdk_maze/py.typed" in archive.namelist()
    shutil.rmtree(tmp_path / "areal-sdk-maze")
    checked = run_python(
        tmp_path, "-m", "areal_sdk", "plugins", "check", "areal-sdk-maze", path=site
    )
    assert "ok: environment 'areal_sdk_maze'" in checked
    world = ("--env", "areal_sdk_maze", "--tasks", "areal_sdk_maze")
    options = ("--model", "tiny", "--steps", "2", "--set", "run.name=run", "--set", "eval.tasks=4")
    trained = run_python(tmp_path, "-m", "areal_sdk", "train", *world, *options, path=site)
    assert "ended: steps" in trained
    assert (tmp_path / "runs" / "run" / "checkpoints" / "final" / "model.safetensors").is_file()


def test_nothing_is_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_mine.py").write_text("precious")
    with pytest.raises(ConfigError, match=r"test_mine.py exists: choose another name"):
        make(tmp_path, monkeypatch, "agent", "mine.py")
    assert [p.name for p in tmp_path.iterdir()] == ["test_mine.py"]


def test_a_name_that_python_cannot_have_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="makes no Python name"):
        make(tmp_path, monkeypatch, "agent", "2fast")
