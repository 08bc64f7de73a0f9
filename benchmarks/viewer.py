"""The viewer's server on a run of 100,000 episodes and one of 32,000 tokens: seconds of each answer, and its memory.

    python benchmarks/viewer.py [--episodes 100000] [--run DIRECTORY]

The run is written by the writers of a real run. The server is the real command in a process of its own, and each figure
is the median of five requests after the first, which is given too: it reads the index.
"""

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import aiohttp

from areal_sdk import Episode, Outcome, Task, Turn
from areal_sdk.testing import RecordedRun

STEP, GROUP, TASKS = 500, 5, 4000
LONG_TOKENS, LONG_TURNS = 32_000, 8
TOKEN = "benchmark"
MORE = 40
"""Rounds of all requests, to see whether memory grows."""
REQUEST = aiohttp.ClientTimeout(total=120)
ASKED = {
    "list, newest 100": "episodes?limit=100",
    "filter, few found": "episodes?where=" + quote("reward < 0.3 and num_turns == 1 and step > 20"),
    "filter by a text": "episodes?where=" + quote('"sum 7" in text and split == train'),
    "order by surprise": "episodes?order=surprising",
    "siblings": "siblings?group=train-2.3",
    "tasks": "tasks",
    "failures": "failures",
    "lanes": "lanes",
    "curves": "events",
    "episode of 32,000 tokens": "episode?id=long",
    "its tokens": "tokens?id=long",
}


def write(directory: Path, num_episodes: int) -> None:
    run = RecordedRun(directory, settings={"algorithm": {"name": "grpo"}})
    for step in range(1, num_episodes // STEP + 1):
        episodes = [short(step, number) for number in range(STEP)]
        run.step(
            step,
            [(episode, ()) for episode in episodes],
            advantages={e.id: (e.reward or 0.0) - 0.5 for e in episodes},
            metrics={"batch/episodes": STEP, "batch/reward": 0.5, "train/entropy": 1 / step},
        )
    run.measure(long())
    run.close()


def short(step: int, number: int) -> Episode:
    task = (step * STEP // GROUP + number // GROUP) % TASKS
    turn = Turn(
        tuple(range(60)),
        (number % 90, 91, 92, 93, 94, 95),
        (-0.5,) * 6,
        (step - 1,) * 6,
        {"role": "assistant", "content": f"The sum {number} is {number * step}, I think."},
        (
            {
                "role": "user",
                "content": f"What is {number} times {step}? Think, then give the number alone.",
            },
        ),
    )
    reward = (number * 7 + step) % 11 / 10
    group = f"train-{step}.{number // GROUP}"
    outcome = Outcome.scored(reward, success=reward == 1.0)
    return Episode(
        f"{group}.{number % GROUP}", Task(f"train-{task}"), (turn,), outcome, group=group
    )


def long() -> Episode:
    """Each turn reads half as many tokens as it samples."""
    turns: list[Turn] = []
    size = LONG_TOKENS // LONG_TURNS
    for number in range(LONG_TURNS):
        before = turns[-1] if turns else None
        turns.append(
            Turn(
                tuple(range(size // 3)),
                tuple(n % 3000 for n in range(size - size // 3)),
                tuple(-(n % 7) / 2 for n in range(size - size // 3)),
                (number,) * (size - size // 3),
                {"role": "assistant", "content": "word " * size},
                ({"role": "user", "content": "and then? " * 200},),
                parent=number - 1 if before else None,
                num_shared=before.num_tokens if before else 0,
                shares_with=number - 1 if before else None,
                _before=before,
            )
        )
    return Episode("long", Task("long"), tuple(turns), Outcome.scored(1.0))


def measure(run: Path) -> None:
    command = [sys.executable, "-m", "areal_sdk", "view", str(run)]
    environment = {**os.environ, "AREAL_SDK_VIEW_TOKEN": TOKEN}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert server.stdout is not None
    try:
        address = server.stdout.readline().split()[1].partition("?")[0]
        asyncio.run(ask(address, run.name, server.pid))
    finally:
        server.terminate()
        server.wait()


async def ask(address: str, run: str, pid: int) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(address, headers=headers, timeout=REQUEST) as session:
        before = memory_mb(pid)
        for name, path in ASKED.items():
            first, size = await timed(session, f"/api/runs/{run}/{path}")
            rest = [(await timed(session, f"/api/runs/{run}/{path}"))[0] for _ in range(5)]
            then = statistics.median(rest)
            print(
                f"{name:26} first {first * 1e3:6.0f} ms, then {then * 1e3:5.0f} ms, {size / 1e3:5.0f} kB"
            )
        read = memory_mb(pid)
        for _ in range(MORE):
            for path in ASKED.values():
                await timed(session, f"/api/runs/{run}/{path}")
        after, num = memory_mb(pid), MORE * len(ASKED)
        print(
            f"memory: {before:.0f} MB at the start, {read:.0f} MB with the index, {after:.0f} MB after {num} more requests"
        )


async def timed(session: aiohttp.ClientSession, path: str) -> tuple[float, int]:
    began = time.monotonic()
    async with session.get(path) as response:
        body = await response.read()
        assert response.status == 200, body[:300]
    return time.monotonic() - began, len(body)


def memory_mb(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--run", type=Path, help="a run of an earlier call, or where to write one")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        run = given.run or Path(scratch) / "many"
        if not run.is_dir():
            write(run, given.episodes)
        measure(run)


if __name__ == "__main__":
    main()
