"""The cost, for the main process, of an episode that a rollout node plays: CPU and bytes.

    python benchmarks/nodes.py [--nodes 1 2 4 8] [--episodes 20000] [--profile FILE]

The main process does all that it does in a run but the trainer's part: tasks, gate, ledger, buffer,
records on disk, batches. The nodes have real gateways and agents over scripted engines. As many episodes
are in flight as the gate admits, 10,000. CPU time is the main process's own, all threads, divided by
the episodes; so it does not depend on how many cores the nodes share.
"""

import argparse
import asyncio
import cProfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tables import table, write_section

from areal_sdk.config import RolloutSection
from areal_sdk.flow import FlowRules
from areal_sdk.gateway import SamplingPolicy
from areal_sdk.launch import LocalLauncher
from areal_sdk.models import make_tiny_model
from areal_sdk.process import ProcessSpec
from areal_sdk.process.connection import Connection
from areal_sdk.process.family import used_by
from areal_sdk.process.memory import short_collections
from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.dispatcher import Dispatcher
from areal_sdk.rollout.groups import Rejection, ScoredEpisode, TriagedEpisode
from areal_sdk.rollout.nodes.pool import NodePool
from areal_sdk.rollout.tasks import TaskSource
from areal_sdk.telemetry import EpisodeWriter, Ledger
from areal_sdk.types import Episode, Task

DOCUMENT = Path(__file__).parents[1] / "docs" / "nodes.md"
GROUP_SIZE = 8
BATCH = 2_000
IN_FLIGHT = 10_000
NUM_TURNS = 3
NUM_TOKENS = 64
"""Sampled tokens of a turn."""


@dataclass(frozen=True)
class Measured:
    nodes: int
    main_ms: float
    """CPU of the main process, an episode."""
    node_ms: float
    """CPU of all nodes, an episode."""
    received: float
    """Bytes that the main process got, an episode."""
    sent: float
    tokens: float
    """Tokens of an episode, prompts included, each once."""
    in_flight: int


class Wire:
    """Counts what passes the main process's connections."""

    received = 0
    sent = 0

    def install(self) -> None:
        took, sent = Connection.buffer_updated, Connection.send

        def count_received(connection: Connection, nbytes: int) -> None:
            self.received += nbytes
            took(connection, nbytes)

        def count_sent(connection: Connection, frame: Any) -> None:
            self.sent += sum(memoryview(buffer).nbytes for buffer in frame.buffers) + 100
            sent(connection, frame)

        setattr(Connection, "buffer_updated", count_received)  # noqa: B010
        setattr(Connection, "send", count_sent)  # noqa: B010


async def measure(
    nodes: int, episodes: int, model_dir: Path, scratch: Path, wire: Wire, profile: Path | None
) -> Measured:
    def spec(index: int, state: Mapping[str, Any]) -> ProcessSpec:
        args = {"model_dir": str(model_dir), "state": dict(state), "tokens": NUM_TOKENS}
        return ProcessSpec(f"node-{index}", "node_parts:main", args)

    pool = NodePool(spec, size=nodes, launcher=LocalLauncher(log_dir=scratch))
    await pool.start({"version": 0})
    writer = EpisodeWriter(scratch / f"episodes-{nodes}")
    tokens = num_ended = most = 0

    def ended(episode: Episode | TriagedEpisode, triaged: ScoredEpisode | Rejection) -> None:
        nonlocal tokens, num_ended, most
        most = max(most, buffer.num_running + 1)
        assert isinstance(triaged, ScoredEpisode), triaged
        assert isinstance(episode, TriagedEpisode)
        num_ended += 1
        tokens += sum(len(t.tokens) for t in triaged.trajectories)
        writer.append(episode.record, version=0)

    rollout = RolloutSection(
        batch=BATCH,
        group_size=GROUP_SIZE,
        max_staleness=IN_FLIGHT // BATCH,
        max_inflight=IN_FLIGHT,
    )
    data = {"question": "how far is it from here to there?", "turns": NUM_TURNS}
    tasks = [Task(f"task-{number}", data) for number in range(episodes // GROUP_SIZE)]
    source = TaskSource(tasks, seed=0, epochs=1)
    buffer = TrajectoryBuffer(FlowRules(rollout), tasks=source, ledger=Ledger())
    profiler = cProfile.Profile(time.process_time)
    try:
        async with pool.training_runner(sampling=SamplingPolicy(), truncated="score") as runner:
            # The first episodes open the runners of the nodes and load what is loaded late.
            wire.received = wire.sent = 0
            before, began = pool_cpu(pool), time.process_time()
            if profile is not None:
                profiler.enable()
            async with Dispatcher(buffer, runner=runner, tasks=source, on_episode=ended):
                version = 0
                while num_ended < episodes:
                    batch = await buffer.cut_batch(version=version)
                    buffer.mark_trained(batch)
                    version += 1
                    buffer.set_version(version)
                    await pool.tell({"version": version})
            profiler.disable()
            main_s, node_s = time.process_time() - began, pool_cpu(pool) - before
    finally:
        await pool.aclose()
        writer.close()
    if profile is not None:
        profiler.dump_stats(profile)
    return Measured(
        nodes,
        1e3 * main_s / num_ended,
        1e3 * node_s / num_ended,
        wire.received / num_ended,
        wire.sent / num_ended,
        tokens / num_ended,
        most,
    )


def pool_cpu(pool: NodePool) -> float:
    return sum((used_by(pid) or (0.0,))[0] for pid in pool.pids.values())


async def run(options: argparse.Namespace) -> list[Measured]:
    wire = Wire()
    wire.install()
    with tempfile.TemporaryDirectory() as directory, short_collections():
        scratch = Path(directory)
        model_dir = scratch / "tiny"
        model_dir.mkdir()
        make_tiny_model(model_dir)
        return [
            await measure(nodes, options.episodes, model_dir, scratch, wire, options.profile)
            for nodes in options.nodes
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--write", action="store_true", help="write the table into docs/nodes.md")
    options = parser.parse_args()
    found = asyncio.run(run(options))
    header = (
        "nodes",
        "main CPU, ms an episode",
        "node CPU, ms an episode",
        "received, bytes an episode",
        "sent, bytes an episode",
        "tokens an episode",
        "most in flight",
    )
    rows = [
        (
            str(m.nodes),
            f"{m.main_ms:.3f}",
            f"{m.node_ms:.2f}",
            f"{m.received:.0f}",
            f"{m.sent:.0f}",
            f"{m.tokens:.0f}",
            f"{m.in_flight:,}",
        )
        for m in found
    ]
    lines = table(header, rows)
    print(lines)
    if options.write:
        write_section("nodes", lines, document=DOCUMENT)


if __name__ == "__main__":
    main()
