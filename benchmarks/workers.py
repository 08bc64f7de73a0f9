"""An agent that computes, inline and in workers: what it does to the main process and to the rate.

    python benchmarks/workers.py [--episodes 96] [--rounds 3] [--write]

`benchmarks/agents/busy.py` (20 ms of pure Python before each of four turns) against the gateway and
a scripted engine that answers 16 tokens at once, so that nothing but agents and gateway costs
anything; 32 episodes at a time. The delay of the main loop is that of a task which wakes every 5 ms.
Rounds are interleaved; medians.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tables import table, write_section

from areal_sdk.agent import AgentLike
from areal_sdk.gateway import Gateway
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.models import make_tiny_model
from areal_sdk.process.family import used_by
from areal_sdk.rollout.agents.runner import EpisodeRunner
from areal_sdk.rollout.agents.spec import AgentSpec
from areal_sdk.rollout.agents.workers.pool import AgentPool
from areal_sdk.rollout.evaluation import evaluate_tasks
from areal_sdk.testing import ScriptedEngine
from areal_sdk.types import Task

AGENT = Path(__file__).parent / "agents" / "busy.py"
NUM_TURNS = 4
NUM_AT_ONCE = 32
REPLY = "0123456789abcde"
"""Fifteen tokens of the tiny model, and the one that ends a turn."""


@dataclass(frozen=True)
class Round:
    episodes_per_s: float
    cpu_s: float
    """CPU-seconds of all processes, an episode."""
    main_cpu_s: float
    delay_p50_s: float
    delay_p99_s: float


async def measure(workers: int, episodes: int, model_dir: Path) -> Round:
    engine = ScriptedEngine(REPLY, model_dir=model_dir)
    gateway = Gateway(engine, renderer=Renderer.load(model_dir), model_name="tiny")
    await gateway.start()
    try:
        async with (
            agent(workers, model_dir.parent) as (player, pids),
            EpisodeRunner(player, gateway=gateway) as runner,
        ):
            await play(runner, NUM_AT_ONCE, "warm-up")
            delays: list[float] = []
            watch = asyncio.create_task(measure_delay(delays))
            workers_before, main_before = used(pids), used([os.getpid()])
            began = time.monotonic()
            await play(runner, episodes, "measured")
            seconds = time.monotonic() - began
            workers_cpu, main_cpu = used(pids) - workers_before, used([os.getpid()]) - main_before
            watch.cancel()
    finally:
        await gateway.aclose()
        await engine.aclose()
    cuts = statistics.quantiles(delays, n=100)
    return Round(
        episodes / seconds,
        (workers_cpu + main_cpu) / episodes,
        main_cpu / episodes,
        cuts[49],
        cuts[98],
    )


@asynccontextmanager
async def agent(workers: int, log_dir: Path) -> AsyncIterator[tuple[AgentLike, list[int]]]:
    spec = AgentSpec("Busy", f"{AGENT}::Busy")
    if not workers:
        yield spec.make(), []
        return
    async with AgentPool(spec, size=workers, log_dir=log_dir) as pool:
        yield pool, list(pool.pids.values())


async def play(runner: EpisodeRunner, episodes: int, split: str) -> None:
    tasks = [Task(f"{split}-{index}", {"question": "?"}) for index in range(episodes)]
    report = await evaluate_tasks(
        runner, tasks, split=split, samples=1, max_concurrency=NUM_AT_ONCE
    )
    assert report.metrics()["success"] == 1.0, report


async def measure_delay(delays: list[float]) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + 0.005
        await asyncio.sleep(0.005)
        delays.append(max(0.0, loop.time() - due))


def used(pids: list[int]) -> float:
    return sum((used_by(pid) or (0.0,))[0] for pid in pids)


async def main(episodes: int, rounds: int, write: bool) -> None:
    sides = (0, 1, 2)
    found: dict[int, list[Round]] = {workers: [] for workers in sides}
    with tempfile.TemporaryDirectory() as root:
        model_dir = Path(root) / "tiny"
        model_dir.mkdir()
        make_tiny_model(model_dir)
        for index in range(rounds):
            for workers in sides:
                found[workers].append(await measure(workers, episodes, model_dir))
                print(f"round {index}, workers = {workers}: {found[workers][-1]}", flush=True)

    def median(workers: int, name: str) -> float:
        return statistics.median(float(getattr(each, name)) for each in found[workers])

    rows = [
        (
            workers or "0 (inline)",
            f"{median(workers, 'episodes_per_s'):.1f}",
            f"{median(workers, 'episodes_per_s') / median(0, 'episodes_per_s'):.2f}x",
            f"{median(workers, 'delay_p50_s') * 1000:.1f} / {median(workers, 'delay_p99_s') * 1000:.0f}",
            f"{median(workers, 'main_cpu_s') * 1000:.0f}",
            f"{median(workers, 'cpu_s') * 1000:.0f}",
        )
        for workers in sides
    ]
    header = (
        "`rollout.workers`",
        "episodes/s",
        "to inline",
        "main loop's delay p50 / p99, ms",
        "main CPU, ms an episode",
        "all CPU, ms an episode",
    )
    text = (
        "## Agents that compute, in workers\n\n"
        f"`python benchmarks/workers.py --episodes {episodes} --rounds {rounds} --write`: "
        f"an episode has {NUM_TURNS} turns, with 20 ms of pure Python before each turn. {NUM_AT_ONCE} "
        f"episodes run at a time, with a scripted engine, on {os.cpu_count()} cores.\n\n"
        f"{table(header, rows)}"
    )
    print(text)
    if write:
        write_section("workers", text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md")
    arguments = parser.parse_args()
    asyncio.run(main(arguments.episodes, arguments.rounds, arguments.write))
