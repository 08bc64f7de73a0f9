"""`pytest --areal`: each thing that a plugin brings is a test."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.plugins.conftest import Install
from tests.plugins.sources import HEAD, HOOKS

PROJECT = """
[project]
name = "bad-one"
[project.entry-points.areal_sdk]
main = "bad"
[tool.pytest.ini_options]
filterwarnings = ["error"]
asyncio_default_fixture_loop_scope = "function"
"""


def run_pytest(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """pytest in a directory, without the settings of this project."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    options = ["-p", "no:cacheprovider", "-q", "-rA", "--rootdir", str(directory)]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        cwd=directory,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    (directory / "pyproject.toml").write_text(PROJECT)
    return directory


def test_each_thing_of_the_projects_plugin_is_a_test(install: Install, project: Path) -> None:
    install("bad-one", HEAD + "def reward(episode): return 1 / len(episode.final_text)\n" + HOOKS)
    (project / "test_own.py").write_text("def test_own(): pass\n")
    done = run_pytest(project, "--areal", "-k", "own or plugin or reward or dataset")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "PASSED test_own.py::test_own" in done.stdout
    assert "PASSED areal::bad-one::plugin" in done.stdout
    assert "PASSED areal::bad-one::dataset 'tasks'" in done.stdout
    assert "FAILED areal::bad-one::reward 'reward'" in done.stdout
    assert "a bad answer deserves a low reward" in done.stdout
    assert "Traceback" not in done.stdout
    assert "2 deselected" in done.stdout


def test_a_plugin_that_does_not_load_is_one_failed_test(install: Install, project: Path) -> None:
    install("other", "import no_such_package")
    done = run_pytest(project, "--areal-plugin", "other")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "FAILED areal::other::plugin" in done.stdout
    assert "No module named 'no_such_package'" in done.stdout


def test_options_reach_the_items(install: Install, project: Path) -> None:
    source = "def reward(episode, *, word: str): return 1.0\n"
    install("bad-one", HEAD + source + HOOKS)
    given = ("--areal-set", "reward.reward.word=please")
    done = run_pytest(project, "--areal", "-k", "reward", *given)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 4 deselected" in done.stdout


def test_a_project_without_a_plugin_is_told_how_to_name_one(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "plain"\n')
    done = run_pytest(tmp_path, "--areal")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--areal-plugin DISTRIBUTION" in done.stderr


def test_the_plugin_of_pytest_is_light() -> None:
    program = (
        "import sys, areal_sdk.pytest_plugin; "
        "print(*{'torch', 'aiohttp', 'openai', 'areal_sdk.testing', 'areal_sdk.config'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")
