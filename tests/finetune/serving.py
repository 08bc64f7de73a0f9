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
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield _address(server), KEY
    finally:
        server.terminate()
        server.communicate(timeout=60)


def _address(server: "subprocess.Popen[str]") -> str:
    assert server.stdout is not None
    for line in server.stdout:
        if line.startswith("serving "):
            return line.rsplit(" at ", 1)[1].strip()
    raise AssertionError("the server ended without an address")
