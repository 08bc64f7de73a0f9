"""Train on SGLang servers while they are killed and stopped: nothing lost, nothing stalls.

    python scripts/sglang_soak.py [--minutes 30] [--every 20]

Starts `areal-sdk train` on this very file with two CPU servers of the tiny model, and every so many
seconds kills one of them, or stops it for a while. At the end: the ledger must balance, the run must
have ended by itself, and no two training steps may be further apart than the deadline.
"""

import argparse
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from areal_sdk import Agent, EpisodeContext, Task
from areal_sdk.telemetry import RunDir

DEADLINE_S = 240.0
"""Longest time between two steps: a restart of both servers on a busy machine fits."""
STOPPED_S = 15.0


class Vowels(Agent):
    """Reward: the share of sampled tokens that are bytes below 128. Varies from the first episode."""

    async def run(self, task: Task, context: EpisodeContext) -> float:
        messages = [{"role": "user", "content": task.data["prompt"]}]
        sampled: list[int] = []
        for _ in range(2):
            turn = await context.generate(messages, max_new_tokens=task.data["length"])
            messages += [turn.message, {"role": "user", "content": "more"}]
            sampled += turn.output_tokens
        return sum(token < 128 for token in sampled) / max(1, len(sampled))


def tasks(split: str) -> Iterator[Task]:
    for index in range(64):
        yield Task(f"{split}-{index}", {"prompt": "abcdefgh"[index % 8], "length": 20 + index})


def start_training(directory: Path, minutes: float) -> "subprocess.Popen[bytes]":
    settings = {
        "model": "tiny",
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
    command = [sys.executable, "-m", "areal_sdk", "train", f"{__file__}::Vowels", *options]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})


def servers_of(pid: int) -> list[int]:
    """The SGLang servers that a process has started."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                parent = directory.joinpath("stat").read_text().rsplit(")", 1)[1].split()[1]
                command = directory.joinpath("cmdline").read_bytes()
            except OSError:
                continue
            if int(parent) == pid and b"sglang.launch_server" in command:
                found.append(int(directory.name))
    return sorted(found)


def break_something(pid: int, draw: random.Random) -> str:
    """One fault; returns what it was."""
    servers = servers_of(pid)
    if not servers:
        return "nothing runs"
    victim = draw.choice(servers)
    if draw.random() < 0.5:
        os.killpg(victim, signal.SIGKILL)
        return f"killed {victim}"
    os.killpg(victim, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    try:
        os.killpg(victim, signal.SIGCONT)
    except ProcessLookupError:
        return f"stopped {victim}, which was replaced"
    return f"stopped {victim} for {STOPPED_S:g} s"


def report(run: RunDir, faults: list[str]) -> dict[str, object]:
    books = run.read_ledger()
    assert books is not None
    dropped = sum(books["dropped"].values())
    times = [event["time"] for event in run.read_metrics(kind="step")]
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    balanced = books["started"] == books["running"] + books["buffered"] + books["trained"] + dropped
    return {
        "steps": len(times),
        "faults": len(faults),
        "ledger": books,
        "balanced": balanced,
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
            while len(servers_of(training.pid)) < 2 and training.poll() is None:
                time.sleep(1.0)
            while training.poll() is None and time.monotonic() < ends_at:
                time.sleep(arguments.every)
                if training.poll() is None:
                    faults.append(break_something(training.pid, draw))
                    print(faults[-1], flush=True)
            code = training.poll()
        finally:
            if training.poll() is None:
                training.kill()
        summary = report(RunDir.open(Path(directory) / "soak"), faults)
    print(json.dumps(summary, indent=2))
    failures = {
        f"the run did not end by itself (exit code {code})": code != 0,
        "the ledger does not balance": not summary["balanced"],
        "steps were too far apart": float(str(summary["longest_gap_s"])) > DEADLINE_S,
    }
    sys.exit("; ".join(name for name, failed in failures.items() if failed) or None)


if __name__ == "__main__":
    main()
