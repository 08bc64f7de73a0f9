"""Nothing of a server stays behind, whoever dies first."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from areal_sdk.backends.remote.starting import guard
from tests.toolbox.waiting import wait_until

# A server whose child, like one in the middle of its start, notices nobody's death.
SERVER = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path(sys.argv[1]).write_text(str(child.pid))
time.sleep(float(sys.argv[2]))
"""
STARTER = """
import os, subprocess, sys, time
command = [sys.executable, sys.argv[1], str(os.getpid()), sys.executable, "-c", *sys.argv[2:]]
subprocess.Popen(command, start_new_session=True)
time.sleep(600)
"""


def is_gone(pid: int) -> bool:
    try:
        return (
            "Z"
            in Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]
        )
    except OSError:
        return True


@pytest.mark.parametrize("first", ["starter", "server"])
def test_the_children_of_a_server_end_with_whichever_ends_first(first: str, tmp_path: Path) -> None:
    child_file = tmp_path / "child"
    lifetime = "600" if first == "starter" else "0.1"
    command = [sys.executable, "-c", STARTER, str(guard.__file__), SERVER]
    starter = subprocess.Popen([*command, str(child_file), lifetime])
    try:
        wait_until(lambda: child_file.exists() and bool(child_file.read_text()))
        child = int(child_file.read_text())
        if first == "starter":
            assert not is_gone(child)
            starter.send_signal(signal.SIGKILL)
        wait_until(lambda: is_gone(child))
    finally:
        starter.kill()
        starter.wait(timeout=60)


def test_a_server_may_take_its_time_to_end(tmp_path: Path) -> None:
    """SIGTERM to the group ends the server, not its guard before it."""
    done = tmp_path / "done"
    slow = (
        "import pathlib, signal, sys, time\n"
        "def end(*_):\n"
        "    time.sleep(0.5)\n"
        "    pathlib.Path(sys.argv[1]).write_text('saved')\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "time.sleep(600)\n"
    )
    command = [sys.executable, str(guard.__file__), str(os.getpid())]
    process = subprocess.Popen(
        [*command, sys.executable, "-c", slow, str(done)], start_new_session=True
    )
    wait_until(done.exists)
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(timeout=60)
    assert done.read_text() == "saved"
