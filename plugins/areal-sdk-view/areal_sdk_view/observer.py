"""The observer `view`: a run is served from its beginning, by a process that reads its directory and nothing else.

The run opens the socket and starts the process; it never waits for it. The process is nice to the run's own, and ends
with the run.
"""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from areal_sdk import hookimpl
from areal_sdk_view.guard import HOST
from areal_sdk_view.server import TOKEN_VARIABLE


class View:
    """Prints the address of the run at its start."""

    def __init__(self, *, port: int = 0) -> None:
        """`port`: default: a free one."""
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @hookimpl
    def on_run_start(self, name: str, run_dir: str, settings: Mapping[str, Any]) -> None:
        path, token = Path(run_dir).resolve(), secrets.token_urlsafe(16)
        with socket.create_server((HOST, self._port)) as listening:
            port = listening.getsockname()[1]
            logs = path / "logs"
            logs.mkdir(mode=0o700, exist_ok=True)  # the first observer may come before any process
            with (logs / "view.log").open("ab") as log:
                program = (sys.executable, "-m", "areal_sdk_view")
                self._process = subprocess.Popen(
                    [*program, str(path.parent), str(listening.fileno())],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=[listening.fileno()],
                    env={**os.environ, TOKEN_VARIABLE: token},
                )
        click.echo(f"view: http://{HOST}:{port}/?token={token}#run/{quote(path.name)}", err=True)

    @hookimpl
    def on_run_end(self, run_dir: str) -> None:
        process, self._process = self._process, None
        if process is not None and process.stdin is not None:
            process.stdin.close()  # the process ends when nobody can write to it any more
            process.terminate()
            process.wait()
