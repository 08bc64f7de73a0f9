"""The end of a CI run says which tests did not run, those of the sandbox first."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

TESTS = """
import pytest

@pytest.mark.skipif(True, reason="bubblewrap is not installed")
@pytest.mark.parametrize("n", range(3))
def test_hostile(n): ...

@pytest.mark.skipif(True, reason="bubblewrap is not installed")
def test_command(): ...

def test_model(): pytest.skip("a tokenizer: cannot be fetched")

def test_runs(): ...
"""


def told_of(log: Path) -> list[str]:
    command = [sys.executable, str(ROOT / "scripts" / "not_run.py"), str(log)]
    return subprocess.check_output(command, text=True).splitlines()


def test_skipped_tests_are_listed_by_reason_and_those_of_the_sandbox_first(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:xdist", "--rootdir", "."]
    run = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120
    )
    said = "!! NOT TESTED: real SGLang servers; this is no Linux\n"
    (tmp_path / "log").write_text(said + run.stdout)
    assert told_of(tmp_path / "log") == [
        said.strip(),
        "!! SECURITY TESTS not run: 4: bubblewrap is not installed",
        "       4 test_some.py",
        "tests not run: 1: a tokenizer: cannot be fetched",
        "       1 test_some.py",
    ]
    (tmp_path / "log").write_text("5480 passed in 400.00s\n")
    assert told_of(tmp_path / "log") == ["no test was skipped"]


FLAKY = """
import pathlib, pytest
pytestmark = pytest.mark.parametrize("n", range({count}))

def test_sometimes(n):
    once = pathlib.Path(f"once-{{n}}")
    assert {again} and (once.exists() or once.touch())
"""


@pytest.mark.parametrize(
    ("count", "again", "code", "flaky"),
    [(3, True, 0, 3), (1, False, 1, 0), (4, True, 1, 0)],
)
def test_a_few_tests_that_pass_alone_are_named_and_do_not_fail(
    tmp_path: Path, count: int, again: bool, code: int, flaky: int
) -> None:
    (tmp_path / "test_some.py").write_text(FLAKY.format(count=count, again=again))
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "--rootdir", "."]
    subprocess.run(pytest_, cwd=tmp_path, capture_output=True, check=False, timeout=120)
    run = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "run_again.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert run.returncode == code, run.stdout
    (tmp_path / "log").write_text(run.stdout)
    assert sum("!! FLAKY TEST: " in line for line in told_of(tmp_path / "log")) == flaky


@pytest.mark.parametrize("installs", [True, False])
def test_ci_installs_bubblewrap_where_it_may_and_ends_with_the_list(
    tmp_path: Path, installs: bool
) -> None:
    """A tree with CI's own first script, checks that skip and fail, and root's `apt-get`."""
    programs = ("bash", "cat", "chmod", "dirname", "mktemp", "rm", "tee", "timeout")
    fakes = {
        "id": "echo 0",
        "apt-get": "[ $2 = update ] || { echo '#!/bin/sh' > bwrap; chmod +x bwrap; }"
        if installs
        else "echo 'no such host'; exit 100",
    }
    checks = "command -v bwrap || echo 'SKIPPED [43] t.py:1: no bubblewrap'; exit 3"
    paths = {f"bin/{name}": f"#!/bin/sh\ncd bin\n{text}\n" for name, text in fakes.items()}
    paths |= {name: (ROOT / name).read_text() for name in (".ci/run", "scripts/not_run.py")}
    for name, text in {**paths, ".ci/checks": checks}.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    for name in programs:
        (tmp_path / "bin" / name).symlink_to(shutil.which(name) or "")
    run = subprocess.run(
        ["bash", ".ci/run"],
        cwd=tmp_path,
        env={"PATH": str(tmp_path / "bin"), "VENV": sys.prefix},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 3, run.stderr
    ending = run.stdout.split("== not run\n")[1].splitlines()
    missing = ["!! SECURITY TESTS not run: 43: no bubblewrap", "      43 t.py"]
    assert ending == (["no test was skipped"] if installs else missing)
