"""Train on SGLang servers while they are killed and stopped: nothing lost, nothing stalls.

    python scripts/sglang_soak.py [--minutes 30] [--every 20]

Starts `areal-sdk train` with two CPU servers of the tiny model, and every so many seconds kills one
of two that are up, or stops one for a while. At the end the ledger must balance with no episode lost to the
faults, the run must have ended by itself, and no two training steps may be further apart than the
deadline.
"""

import argparse
import itertools
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from areal_sdk.telemetry import RunDir

ROOT = Path(__file__).parents[1]
AGENT = ROOT / "tests" / "loop" / "vowels.py"
DEADLINE_S = 240.0
"""Longest time between two steps: a restart of both servers on a busy machine fits."""
STOPPED_S = 15.0
LOSSES = ("infrastructure", "timeout", "agent")
"""Kinds of error that a fault of a server could be booked as."""


def start_training(directory: Path, minutes: float) -> "subprocess.Popen[bytes]":
    settings = {
        "model": "tiny",
        "agent.more_tokens": 100,
        "run.dir": directory,
        "run.name": "soak",
        "run.steps": 1_000_000,
        "run.max_minutes": minutes,
        "run.checkpoint_every": 0,
        "rollout.batch": 16,
        "rollout.group_size": 4,
        "rollout.max_inflight": 32,
        "rollout.max_staleness": 4,
        "engine.name": "sglang",
        "engine.dtype": "float32",
        "engine.sglang.servers": 2,
        "engine.sglang.transport": "tensor",
        "trainer.precision": "float32",
        "trainer.learning_rate": 1e-4,
        "eval.before": "false",
        "eval.after": "false",
    }
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    command = [sys.executable, "-m", "areal_sdk", "train", str(AGENT), *options]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


def serving(pid: int) -> list[int]:
    """The SGLang servers that a process has started and that are up; one that starts is none yet."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                parent = directory.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1]
                command = directory.joinpath("cmdline").read_bytes().decode().split("\0")
            except OSError:
                continue
            if int(parent) == pid and "sglang.launch_server" in command:
                port = int(command[command.index("--port") + 1])
                if listens(port):
                    found.append(int(directory.name))
    return sorted(found)


def listens(port: int) -> bool:
    with socket.socket() as sock:
        sock.settimeout(1.0)
        return sock.connect_ex(("127.0.0.1", port)) == 0


def break_something(pid: int, draw: random.Random) -> str | None:
    """One fault; returns what it was. None: nothing is up that could be broken."""
    servers = serving(pid)
    if not servers:
        return None
    victim = draw.choice(servers)
    if len(servers) > 1 and draw.random() < 0.5:  # on a busy machine a start can take minutes
        os.killpg(victim, signal.SIGKILL)
        return f"killed {victim}"
    os.killpg(victim, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    try:
        os.killpg(victim, signal.SIGCONT)
    except ProcessLookupError:
        return f"stopped {victim}, which was replaced"
    return f"stopped {victim} for {STOPPED_S:g} s"


def has_stepped(run: Path) -> bool:
    metrics = run / "metrics.jsonl"
    return metrics.exists() and '"kind":"step"' in metrics.read_text()


def report(run: RunDir, faults: list[str]) -> dict[str, object]:
    books = run.read_ledger()
    if books is None:
        sys.exit("the run ended without books: see its error above")
    dropped: dict[str, int] = books["dropped"]
    times = [event["time"] for event in run.read_metrics(kind="step")]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    accounted = books["running"] + books["buffered"] + books["trained"] + sum(dropped.values())
    return {
        "steps": len(times),
        "faults": len(faults),
        "kills": sum(fault.startswith("killed") for fault in faults),
        "ledger": books,
        "balanced": books["started"] == accounted,
        "lost_to_faults": sum(dropped.get(f"error_{kind}", 0) for kind in LOSSES),
        "median_gap_s": round(statistics.median(gaps), 1) if gaps else None,
        "longest_gap_s": round(max(gaps, default=0.0), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--every", type=float, default=20.0)
    arguments = parser.parse_args()
    draw = random.Random(0)
    faults: list[str] = []
    with tempfile.TemporaryDirectory() as directory:
        training = start_training(Path(directory), arguments.minutes)
        ends_at = time.monotonic() + 60 * arguments.minutes + 2 * DEADLINE_S
        try:
            while not has_stepped(Path(directory) / "soak") and training.poll() is None:
                time.sleep(1.0)
            due_at = time.monotonic()
            while training.poll() is None and time.monotonic() < ends_at:
                time.sleep(max(0.0, due_at - time.monotonic()))
                due_at = time.monotonic() + arguments.every
                fault = break_something(training.pid, draw) if training.poll() is None else None
                if fault is not None:
                    faults.append(fault)
                    print(fault, flush=True)
            code = training.poll()
        finally:
            if training.poll() is None:
                training.kill()
        summary = report(RunDir.open(Path(directory) / "soak"), faults)
    print(json.dumps(summary, indent=2))
    failures = {
        f"the run did not end by itself (exit code {code})": code != 0,
        "the ledger does not balance": not summary["balanced"],
        "episodes were lost": summary["lost_to_faults"] != 0,
        "steps were too far apart": float(str(summary["longest_gap_s"])) > DEADLINE_S,
    }
    sys.exit("; ".join(name for name, failed in failures.items() if failed) or None)


if __name__ == "__main__":
    main()
