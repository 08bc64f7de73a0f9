"""`make demo` installs what the demo needs, and says so before it starts."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def planned(target: str, venv: Path) -> str:
    """The commands `make` would run."""
    command = ["make", "--dry-run", "--no-print-directory", target, f"VENV={venv}"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def installed_extras(commands: str) -> list[str]:
    return re.findall(r'"\.\[([a-z,]+)\]"', commands)


def test_the_demo_installs_no_checks(tmp_path: Path) -> None:
    assert installed_extras(planned("demo", tmp_path)) == ["train"]


@pytest.mark.parametrize("target", ["test", "verify", "docs"])
def test_what_checks_installs_the_checks(tmp_path: Path, target: str) -> None:
    assert "train,dev" in installed_extras(planned(target, tmp_path))


def test_the_checks_environment_runs_the_demo_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("bin/python", "installed", "installed-train"):
        (tmp_path / name).touch()
    assert not installed_extras(planned("demo", tmp_path))


@pytest.mark.parametrize("target", ["demo", "test"])
def test_an_install_says_first_how_much_and_how_long(tmp_path: Path, target: str) -> None:
    commands = planned(target, tmp_path)
    said = re.search(r"installing .*: a few minutes and about \d\.\d GB", commands)
    assert said is not None
    assert said.start() < commands.index("pip install")
