"""A run of 100,000 short episodes: its disk and memory, what is kept, and the time to look at it.

    python benchmarks/many_episodes.py [--episodes 100000] [--keep 10] [--write]

The real command plays the episodes: agent, gateway, sessions, groups, batches, records. Only the engine
answers from a script, and the trainer learns nothing. Each look is a whole command in a process of its own.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tables import table, write_section

from areal_sdk.telemetry import RunDir

ROOT = Path(__file__).resolve().parents[1]
BATCH, GROUP, SAMPLED = 512, 8, 6
WATCH = """
import resource, subprocess, sys, time

began = time.monotonic()
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""A small process between this one and the command: the peak of a child begins with its parent's memory."""
AGENT = """
import areal_sdk

SYSTEM = "You answer questions of arithmetic. Think, then give the number alone, without a word. " * 3


class Sums(areal_sdk.Agent):
    async def run(self, task, context):
        asked = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task.data["question"]}]
        turn = await context.generate(asked, max_new_tokens=6)
        return sum(token < 128 for token in turn.output_tokens) / 6


def tasks(split):
    for number in range(4000):
        yield areal_sdk.Task(f"{split}-{number}", {"question": f"What is {number} + {len(split)} * {number}?"})
"""


@dataclass(frozen=True)
class Look:
    """One command on the finished run: the median of three."""

    seconds: float
    peak_mb: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Disk, memory and looks of a run of many episodes."
    )
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--keep", type=float, default=10.0, help="run.keep_episodes, in GB")
    parser.add_argument("--write", action="store_true", help="the table in docs/benchmarks.md")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        text = measured(Path(scratch), options.episodes, options.keep)
    print(text)
    if options.write:
        write_section("many episodes", text)


def measured(directory: Path, num_episodes: int, keep: float) -> str:
    agent = directory / "sums.py"
    agent.write_text(AGENT)
    settings = {
        "run.dir": directory,
        "run.name": "run",
        "run.steps": num_episodes // BATCH,
        "run.checkpoint_every": 50,
        "run.keep_episodes": keep,
        "rollout.batch": BATCH,
        "rollout.group_size": GROUP,
        "rollout.max_inflight": BATCH,
        "rollout.max_new_tokens": SAMPLED,
        "rollout.epochs": 1000,
        "engine.name": "scripted",
        "trainer.name": "scripted",
        "eval.tasks": 50,
    }
    options = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    parts = ["--plugin", str(ROOT / "tests" / "loop" / "scripted.py")]
    began = time.monotonic()
    rss_mb, cpu_s = watched(["train", str(agent), "--model", "tiny", *parts, *options])
    elapsed_s = time.monotonic() - began
    run = RunDir.open(directory / "run")
    listed = list(run.list_episodes())
    sizes = {path.suffix: 0 for path in run.episodes.iterdir()}
    for path in run.episodes.iterdir():
        sizes[path.suffix] += path.stat().st_size
    here, oldest = str(run.path), listed[-1].id
    looks = {
        "`inspect RUN`": look("inspect", here),
        "`inspect RUN --worst 5`": look("inspect", here, "--worst", "5"),
        "`inspect RUN --where 'reward < 0.2 and step == 3'`": look(
            "inspect", here, "--where", "reward < 0.2 and step == 3"
        ),
        "`inspect RUN --episode ID` (the oldest)": look("inspect", here, "--episode", oldest),
        "`runs`": look("runs", str(directory)),
        "`--version` (what every command costs)": look("--version"),
    }
    rows: list[Sequence[object]] = [
        ("episodes listed / deleted", f"{len(listed):,} / {run.num_deleted():,}"),
        (
            "on disk",
            f"{sum(sizes.values()) / 1e6:.1f} MB in {len(list(run.episodes.iterdir()))} files",
        ),
        *(
            (f"bytes an episode in `*{suffix}`", f"{size / len(listed):.0f}")
            for suffix, size in sorted(sizes.items())
        ),
        (
            "memory of the main process after a tenth, half, all",
            " / ".join(f"{m:.0f} MB" for m in rss_mb),
        ),
        ("CPU of the main process, an episode", f"{cpu_s / num_episodes * 1e3:.2f} ms"),
        *((name, f"{one.seconds:.2f} s, {one.peak_mb:.0f} MB") for name, one in looks.items()),
    ]
    return (
        f"## A run of {num_episodes:,} short episodes\n\n"
        f"`python benchmarks/many_episodes.py --episodes {num_episodes} --keep {keep:g} --write`: the real command with an "
        f"engine that answers {SAMPLED} tokens from a script and a trainer that learns nothing, {elapsed_s:.0f} s in all, on "
        f"{os.cpu_count()} cores under a load of {os.getloadavg()[1]:.0f}. Prompts have about 300 tokens. Looks: wall time "
        "and peak memory of the whole command, median of three.\n\n" + table(("", "measured"), rows)
    )


def watched(arguments: Sequence[str]) -> tuple[list[float], float]:
    """The memory of the main process after a tenth, half and all of its steps, and its CPU seconds."""
    process = subprocess.Popen([sys.executable, "-m", "areal_sdk", *arguments])
    seen: list[float] = []
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        status = Path(f"/proc/{process.pid}/status").read_text()
        if "VmRSS:" in status:
            seen.append(int(status.partition("VmRSS:")[2].split()[0]) / 1024)
        time.sleep(0.5)
    process.returncode = os.waitstatus_to_exitcode(ended[1])
    assert process.returncode == 0, "the run failed"
    usage = ended[2]
    training = seen[len(seen) // 20 :]
    places = (len(training) // 10, len(training) // 2, -1)
    return [training[at] for at in places], usage.ru_utime + usage.ru_stime


def look(*arguments: str) -> Look:
    found = [_look(arguments) for _ in range(3)]
    return Look(
        statistics.median(one.seconds for one in found),
        statistics.median(one.peak_mb for one in found),
    )


def _look(arguments: Sequence[str]) -> Look:
    command = [sys.executable, "-m", "areal_sdk", *arguments]
    told = subprocess.run(
        [sys.executable, "-c", WATCH, *command], stdout=subprocess.PIPE, text=True, check=True
    )
    seconds, peak_kb = told.stdout.split()
    return Look(float(seconds), int(peak_kb) / 1024)


if __name__ == "__main__":
    main()
