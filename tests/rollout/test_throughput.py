"""Streaming pays with slow tools: on a virtual clock, synchronous against asynchronous."""

import asyncio
import random
from collections.abc import Callable

from areal_sdk.config import RolloutSection
from areal_sdk.flow import FlowRules
from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.dispatcher import Dispatcher
from areal_sdk.rollout.tasks import EpisodeRequest, TaskSource, stable_seed
from areal_sdk.telemetry.ledger import DropReason, Ledger
from areal_sdk.types import Episode, Outcome
from tests.rollout.simulation import simulate, tasks, turn

NUM_STEPS = 20
TRAIN_S = 4.0
ENGINE_SLOTS = 32
TURN_S = 0.5


class SlowTools:
    """Seven turns on a shared engine, six tool calls in between: log-normal, median 0.5 s."""

    def __init__(self, version: Callable[[], int]) -> None:
        self._version = version
        self._slots = asyncio.Semaphore(ENGINE_SLOTS)
        self._first: dict[str, int] = {}

    def oldest_version(self, episode_id: str) -> int | None:
        return self._first.get(episode_id)

    async def run(self, request: EpisodeRequest) -> Episode:
        generator = random.Random(stable_seed(request.id))
        versions = []
        for call in range(7):
            async with self._slots:
                versions.append(self._version())
                self._first.setdefault(request.id, versions[0])
                await asyncio.sleep(TURN_S)
            if call < 6:
                await asyncio.sleep(min(5.0, max(0.1, generator.lognormvariate(-0.693, 1.0))))
        self._first.pop(request.id, None)
        reward = float(generator.random() < 0.5)
        return Episode(request.id, request.task, (turn(*versions),), Outcome.scored(reward))


async def seconds_a_step(eta: int) -> tuple[float, float]:
    """Seconds a step takes, and the share of finished episodes dropped as stale."""
    ledger, clock = Ledger(), asyncio.get_running_loop().time
    rollout = RolloutSection(batch=32, group_size=8, max_staleness=eta, max_inflight=64)
    source = TaskSource(tasks(100))
    buffer = TrajectoryBuffer(FlowRules(rollout), tasks=source, ledger=ledger)
    runner = SlowTools(lambda: buffer.version)
    async with Dispatcher(buffer, runner=runner, tasks=source):
        began = clock()
        for version in range(NUM_STEPS):
            batch = await buffer.cut_batch(version=version)
            assert batch.metrics["staleness_max"] <= eta
            await asyncio.sleep(TRAIN_S)
            buffer.mark_trained(batch)
            buffer.set_version(version + 1)
        took = (clock() - began) / NUM_STEPS
    stale = ledger.dropped.get(DropReason.STALE, 0)
    return took, stale / (ledger.kept + stale)


def test_streaming_hides_slow_tools_and_drops_next_to_nothing() -> None:
    synchronous, _ = simulate(seconds_a_step(0))
    streaming, stale_share = simulate(seconds_a_step(2))
    assert synchronous / streaming >= 2.5
    assert stale_share <= 0.05
