"""The tests of this folder, in a process that has the pretended device from its beginning."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.pretended import build

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_everything_on_the_pretended_device() -> None:
    if build.compiler() is None:
        pytest.skip("no C++ compiler, which the pretended device needs: apt install g++")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    done = subprocess.run(
        [*command, "tests/pretended"],
        cwd=ROOT,
        env={**os.environ, "AREAL_SDK_PRETENDED": "1"},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-12_000:] + done.stderr[-2000:]
    assert " passed" in done.stdout, done.stdout
