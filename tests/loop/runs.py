"""Real runs in real processes, small enough for a test."""

import contextlib
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from areal_sdk.cli.main import _run as exit_code
from areal_sdk.cli.main import cli
from areal_sdk.loop.shutdown import SAME_WITHIN_S
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.metrics import read_metrics

AGENT = Path(__file__).with_name("vowels.py")
PLUGIN = str(Path(__file__).with_name("scripted.py"))
SCRIPTED_ENGINE = ("--plugin", PLUGIN, "--set", "engine.name=scripted")
SCRIPTED_TRAINER = ("--plugin", PLUGIN, "--set", "trainer.name=scripted")
SCRIPTED = (*SCRIPTED_ENGINE, "--set", "trainer.name=scripted")
"""Arguments of a run without torch, see `scripted.py`."""
DEADLINE_S = 240.0

SMALL = {
    "model": "tiny",
    "run.steps": 4,
    "run.checkpoint_every": 0,
    "rollout.batch": 16,
    "rollout.group_size": 4,
    "rollout.max_inflight": 16,
    "engine.dtype": "float32",
    "engine.max_slots": 16,
    "trainer.precision": "float32",
    "trainer.learning_rate": 1e-3,
    "eval.before": False,
    "eval.after": False,
}


def start_training(
    directory: Path,
    *arguments: str,
    agent: Path = AGENT,
    env: Mapping[str, str] | None = None,
    preexec: Callable[[], None] | None = None,
    **settings: Any,
) -> "subprocess.Popen[str]":
    """`areal-sdk train` on `agent`, with `SMALL` settings and `settings` (a__b for a.b)."""
    command = training(directory, *arguments, agent=agent, **settings)
    return start_command(*command, env=env, preexec=preexec)


def train_and_keep_weights(
    directory: Path,
    *arguments: str,
    env: Mapping[str, str] | None = None,
    deadline_s: float = DEADLINE_S,
    **settings: Any,
) -> str:
    """The output of a finished run; each version of its weights is in `directory/weights`."""
    weights = directory / "weights"
    weights.mkdir()
    env = {**(env or {}), "AREAL_TEST_WEIGHTS": str(weights)}
    return finish(start_training(directory, *arguments, env=env, **settings), deadline_s=deadline_s)


def training(
    directory: Path, *arguments: str, agent: Path = AGENT, **settings: Any
) -> tuple[str, ...]:
    """The arguments of the command that `start_training` starts."""
    values = SMALL | {"run.dir": str(directory), "run.name": "run"}
    values |= {key.replace("__", "."): value for key, value in settings.items()}
    options = [part for key, value in values.items() for part in ("--set", f"{key}={_toml(value)}")]
    return ("train", str(agent), *options, *arguments)


def refused(*arguments: str) -> str:
    """The words of `areal-sdk` for arguments that it cannot run; exit code 2.

    The command runs in this process: it ends before it has started any other.
    """
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        code = exit_code(arguments)
    assert code == 2, f"exit code {code}: {told.getvalue()}"
    assert "Traceback" not in told.getvalue()
    return told.getvalue()


def inspect(*arguments: str) -> str:
    """The output of `areal-sdk inspect`, run in this process."""
    done = CliRunner().invoke(cli, ["inspect", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def resume_training(
    directory: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> "subprocess.Popen[str]":
    return start_command("train", "--resume", str(directory / "run"), *arguments, env=env)


def start_command(
    *arguments: str,
    env: Mapping[str, str] | None = None,
    preexec: Callable[[], None] | None = None,
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "areal_sdk", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        preexec_fn=preexec,
    )


def finish(
    process: "subprocess.Popen[str]", *, code: int = 0, deadline_s: float = DEADLINE_S
) -> str:
    """Wait for the end; its output. Fails on another exit code."""
    try:
        output, _ = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        raise AssertionError(f"still running after {deadline_s} s:\n{output}") from None
    assert process.returncode == code, f"exit code {process.returncode}:\n{output}"
    return output


def press_ctrl_c_again(process: "subprocess.Popen[str]") -> None:
    """A second Ctrl-C, so late that it is not the same one. The process has said that it heard the first: a busy machine
    may deliver a signal late."""
    heard_at = time.monotonic()
    while time.monotonic() - heard_at < SAME_WITHIN_S and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)


def told(lines: Iterable[str], pattern: str) -> str:
    """The first group of the first line that matches."""
    deadline = time.monotonic() + DEADLINE_S
    for line in lines:
        if found := re.search(pattern, line):
            return found[1]
        assert time.monotonic() < deadline
    raise AssertionError(f"it ended without saying {pattern!r}")


def children_of(pid: int, name: str) -> list[int]:
    """The child processes of `pid` by their name, from their command lines."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
            except (OSError, IndexError):
                continue  # it ended meanwhile
            if parent == pid and name.encode() in arguments:
                found.append(int(entry.name))
    return found


def steps_so_far(directory: Path, kind: str = "step") -> int:
    path = directory / "run" / "metrics.jsonl"
    return len(read_metrics(path, kind=kind))


def wait_for_steps(
    process: "subprocess.Popen[str]",
    directory: Path,
    count: int,
    *,
    kind: str = "step",
    deadline_s: float = DEADLINE_S,
) -> None:
    """Return once `count` steps are in the metrics; fail if the run ends before."""
    deadline = time.monotonic() + deadline_s
    while steps_so_far(directory, kind) < count:
        if process.poll() is not None:
            raise AssertionError(f"the run ended early:\n{process.communicate()[0]}")
        assert time.monotonic() < deadline, f"no {count} steps within {deadline_s} s"
        time.sleep(0.02)


def run_dir(directory: Path) -> RunDir:
    return RunDir.open(directory / "run")


def readable_by_others(directory: Path) -> list[str]:
    """Files that another user may read there, or could if the directory was opened to others: not
    the weights."""
    found = [directory, *directory.rglob("*")]
    return [
        path.relative_to(directory).as_posix()
        for path in found
        if path.lstat().st_mode & 0o077 and not {"checkpoints", "model"} & {*path.parts}
    ]


def _toml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
