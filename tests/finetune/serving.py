"""A run's weights, served as a teacher's endpoint."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

KEY = "sk-a-teacher-for-a-test-0123456789"


@contextmanager
def served(model: Path) -> Iterator[tuple[str, str]]:
    """Serve `model`; yields the address and the key."""
    command = [sys.executable, "-m", "areal_sdk", "serve", "--model", str(model)]
    command += ["--port", "0", "--admin-key", KEY]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield _address(server), KEY
    finally:
        server.terminate()
        server.communicate(timeout=60)


def _address(server: "subprocess.Popen[str]") -> str:
    assert server.stderr is not None
    for line in server.stderr:
        if " at http" in line:
            return line.rsplit(" at ", 1)[1].strip()
    raise AssertionError("the server said no address")
