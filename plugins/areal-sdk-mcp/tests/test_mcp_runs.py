"""Runs whose episodes share a server: it ends with the run, and nobody has to read about that."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SERVERS = Path(__file__).parent / "servers"
CALCULATOR = f"{sys.executable} {SERVERS / 'calculator.py'}"
DEADLINE_S = 120.0


@dataclass(frozen=True)
class Server:
    setting: str
    """Names it to a run."""
    is_rid: Callable[[], bool]
    """Whether the run has ended it, or has ended its session."""


@pytest.fixture(params=["stdio", "http"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A calculator over each transport."""
    if request.param == "stdio":
        pids = tmp_path / "pids"
        script = tmp_path / "calculator.sh"
        script.write_text(f"echo $$ >> {pids}\nexec {CALCULATOR}\n")
        yield Server(f"env.mcp.command=sh {script}", lambda: not alive(pids))
        return
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    log = tmp_path / "server.log"
    with log.open("w") as file:
        process = subprocess.Popen([*CALCULATOR.split(), str(port)], stdout=file, stderr=file)
    try:
        until(lambda: "Uvicorn running" in log.read_text())
        url = f"http://127.0.0.1:{port}/mcp"
        yield Server(f"env.mcp.url={url}", lambda: '"DELETE /mcp HTTP/1.1" 200' in log.read_text())
    finally:
        process.kill()
        process.wait()


def alive(pids: Path) -> list[str]:
    started = pids.read_text(encoding="utf-8").split()
    assert started, "no server was started"
    return [pid for pid in started if Path(f"/proc/{pid}").exists()]


def until(is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start(directory: Path, server: Server, *settings: str) -> "subprocess.Popen[str]":
    """An evaluation of four episodes that share one server."""
    tasks = directory / "tasks.jsonl"
    tasks.write_text('{"question": "How much is 2+3?", "answer": 5}\n' * 4)
    sets = [server.setting, "env.mcp.stateless=true", "env.mcp.start_timeout_s=60"]
    sets += ["engine.name=adder", "env.mcp.max_turns=1", *settings]
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "areal_sdk", "eval", "--env", "mcp", "--model", "tiny"),
            *("--tasks", str(tasks), "--reward", "numeric_match"),
            *("--plugin", str(SERVERS / "adder.py")),
            *(part for setting in sets for part in ("--set", setting)),
        ],
        cwd=directory,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(run: "subprocess.Popen[str]", *, code: int) -> list[str]:
    """The lines that the run wrote to stderr, without those that say how long it has taken."""
    try:
        output, errors = run.communicate(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired:
        run.kill()
        raise
    assert run.returncode == code, output + errors
    lines = [line for line in errors.splitlines() if line]
    return [line for line in lines if not re.search(r"  \d+:\d\d$", line)]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_ends_its_shared_server_without_a_word(
    server: Server, tmp_path: Path, workers: int
) -> None:
    assert finished(start(tmp_path, server, f"rollout.workers={workers}"), code=0) == []
    until(server.is_rid)


def test_ctrl_c_ends_the_shared_server_without_a_word(server: Server, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    run = start(tmp_path, server, f"engine.adder.asked={asked}")
    until(lambda: asked.exists() or run.poll() is not None)
    run.send_signal(signal.SIGINT)
    assert finished(run, code=1) == ["interrupted"]
    until(server.is_rid)
