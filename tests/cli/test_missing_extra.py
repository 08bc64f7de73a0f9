"""Commands that need torch say, without it, what to install; the others work."""

import subprocess
import sys
from pathlib import Path

import pytest

AGENT = Path(__file__).parents[2] / "examples" / "agents" / "areal_style.py"

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None\nfrom areal_sdk.cli import main\nmain()"


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    "command",
    [("eval", str(AGENT)), ("train", str(AGENT)), ("serve", "--port", "0")],
    ids=lambda command: command[0],
)
def test_a_command_that_needs_torch_says_what_to_install(
    command: tuple[str, ...], tmp_path: Path
) -> None:
    done = run(*command, "--model", "tiny", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert 'pip install "areal-sdk[train]"' in done.stderr.splitlines()[-1]


def test_doctor_says_so_and_does_not_fail(tmp_path: Path) -> None:
    done = run("doctor", "--port", "0", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "not installed" in done.stdout
