"""A clock that jumps and episodes that only take time: whole runs in milliseconds."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from areal_sdk.config import RolloutSection
from areal_sdk.flow import FlowRules
from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.dispatcher import Dispatcher
from areal_sdk.rollout.groups import RolloutBatch
from areal_sdk.rollout.tasks import EpisodeRequest, TaskSource, stable_seed
from areal_sdk.telemetry.ledger import Ledger
from areal_sdk.trainer import IdleGroups
from areal_sdk.types import Episode, ErrorKind, Outcome, Task, Turn

T = TypeVar("T")

PATIENCE_S = 300_000.0
"""Seconds of virtual time. If a quarter of the episodes are kept and one group of four plays at a
time, one group in 256 is whole, and one takes half a minute."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Nothing sleeps: when nobody is ready, time jumps to the next timer. No timer is a deadlock."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready:  # type: ignore[attr-defined]
            timers = self._scheduled  # type: ignore[attr-defined]
            assert timers, "the simulation is stuck: nobody is ready and nothing is scheduled"
            self._now = max(self._now, timers[0]._when)
        super()._run_once()  # type: ignore[misc]


def simulate(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)


def tasks(count: int) -> list[Task]:
    return [Task(f"t{index}") for index in range(count)]


def turn(*versions: int, prompt: tuple[int, ...] = (1, 2, 3), parent: int | None = None) -> Turn:
    """A turn with one output token for each version."""
    return Turn(
        new_tokens=prompt,
        output_tokens=tuple(100 + index for index in range(len(versions))),
        logprobs=tuple(-0.5 - index for index in range(len(versions))),
        versions=versions,
        parent=parent,
    )


@dataclass
class SimulatedRunner:
    """Episodes that take time and end in any way there is, decided by their ids alone."""

    version: Callable[[], int]
    """Function that returns the version that the engine serves now."""
    seed: int = 0
    clock_seed: int = 0
    """Decides how long things take, and nothing else."""
    failure_rate: float = 0.0
    truncated_rate: float = 0.0
    straggler_rate: float = 0.0
    straggler_s: float = 50.0
    num_rewards: int = 3
    """Rewards are one of so many; 1 makes every group uniform."""
    num_running: int = 0
    max_running: int = 0
    num_cancelled: int = 0
    first_versions: dict[str, int] = field(default_factory=dict)

    def oldest_version(self, episode_id: str) -> int | None:
        return self.first_versions.get(episode_id)

    async def run(self, request: EpisodeRequest) -> Episode:
        generator = random.Random(stable_seed(self.seed, request.id))
        clock = random.Random(stable_seed("clock", self.clock_seed, self.seed, request.id))
        self.num_running += 1
        self.max_running = max(self.max_running, self.num_running)
        began = asyncio.get_running_loop().time()
        try:
            versions = []
            for _ in range(generator.randint(1, 3)):
                await asyncio.sleep(clock.expovariate(1.0))
                versions.append(self.version())
                self.first_versions.setdefault(request.id, self.version())
            if clock.random() < self.straggler_rate:
                await asyncio.sleep(self.straggler_s)
            versions.append(self.version())
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.num_running -= 1
            self.first_versions.pop(request.id, None)
        return Episode(
            request.id,
            request.task,
            turns=(turn(*versions),),
            outcome=self._outcome(generator),
            group=request.group,
            sibling=request.sibling,
            epoch=request.epoch,
            truncated=generator.random() < self.truncated_rate,
            duration_s=asyncio.get_running_loop().time() - began,
        )

    def _outcome(self, generator: random.Random) -> Outcome:
        if generator.random() >= self.failure_rate:
            return Outcome.scored(float(generator.randrange(self.num_rewards)))
        kind = generator.choice([*ErrorKind, None])
        return Outcome.failed(kind, "simulated") if kind else Outcome.abstained("simulated")


class Run:
    """A training run without a trainer: cuts batches, waits a while, raises the version."""

    def __init__(
        self,
        *,
        batch: int = 4,
        group_size: int = 2,
        eta: int = 2,
        max_inflight: int = 16,
        num_tasks: int = 7,
        epochs: int | None = None,
        version: int = 0,
        in_order: bool = False,
        source: TaskSource | None = None,
        ledger: Ledger | None = None,
        runner: dict[str, Any] | None = None,
        dispatcher: dict[str, Any] | None = None,
        idle_groups: IdleGroups = IdleGroups.EQUAL_REWARDS,
        max_lost_in_a_row: int | None = None,
        **rollout: Any,
    ) -> None:
        """`rollout`: settings of `[rollout]` beside the named ones."""
        self.ledger = ledger or Ledger()
        self.source = source or TaskSource(tasks(num_tasks), epochs=epochs)
        section = RolloutSection(
            batch=batch,
            group_size=group_size,
            max_staleness=eta,
            max_inflight=max_inflight,
            **rollout,
        )
        rules = FlowRules(section, in_order=in_order)
        self.gate = rules.gate
        self.buffer = TrajectoryBuffer(
            rules,
            tasks=self.source,
            ledger=self.ledger,
            version=version,
            idle_groups=idle_groups,
            max_lost_in_a_row=max_lost_in_a_row,
        )
        self.runner = SimulatedRunner(lambda: self.buffer.version, **(runner or {}))
        self.dispatcher = Dispatcher(
            self.buffer,
            runner=self.runner,
            tasks=self.source,
            **(dispatcher or {}),
        )
        self.batches: list[RolloutBatch] = []

    async def step(self, *, train_s: float = 1.0) -> RolloutBatch:
        batch = await self.buffer.cut_batch(version=self.buffer.version, timeout_s=PATIENCE_S)
        await asyncio.sleep(train_s)
        self.buffer.mark_trained(batch)
        self.check()
        self.dispatcher.set_version(self.buffer.version + 1)
        self.check()
        self.batches.append(batch)
        return batch

    def check(self) -> None:
        """Check what holds at every instant."""
        self.ledger.check()
        gate, version = self.gate, self.buffer.version
        assert self.buffer.num_slots_held <= (version + gate.max_staleness + 1) * gate.batch
        assert self.ledger.running <= gate.max_inflight
        assert self.runner.num_running <= gate.max_inflight

    async def steps(self, count: int, *, train_s: float = 1.0) -> "Run":
        watching = asyncio.create_task(self.watch())
        try:
            async with self.dispatcher:
                for _ in range(count):
                    await self.step(train_s=train_s)
                    if watching.done():
                        watching.result()
        finally:
            watching.cancel()
            await asyncio.wait({watching})
        assert watching.cancelled(), watching.exception()
        return self

    async def watch(self) -> None:
        """Look in between the steps as well."""
        while True:
            await asyncio.sleep(0.37)
            self.check()
            assert self.ledger.running == self.runner.num_running

    @property
    def trained_groups(self) -> list[list[str]]:
        return [[group.id for group in batch.finished] for batch in self.batches]
