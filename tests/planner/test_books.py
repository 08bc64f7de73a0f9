"""The simulated gate and buffer take the same groups at the same times as the real ones."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from areal_sdk.config import RolloutSection
from areal_sdk.flow import FlowRules
from areal_sdk.planner.simulation.run import simulated_steps
from areal_sdk.planner.simulation.setup import Setup
from areal_sdk.planner.speeds import DecodeCurve, EngineSpeed, TrainerSpeed
from areal_sdk.planner.workload import EpisodeShape, TurnShape, Workload
from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.dispatcher import Dispatcher
from areal_sdk.rollout.tasks import EpisodeRequest, TaskSource
from areal_sdk.telemetry.ledger import Ledger
from areal_sdk.types import Episode, ErrorKind, Outcome
from tests.rollout.simulation import simulate, tasks, turn

STEPS = 24
TRAIN_S = 1.0
SWAP_S = 0.01
AT_ONCE = EngineSpeed(DecodeCurve(((1, 1e-9),)), swap_s=SWAP_S)


@dataclass(frozen=True)
class Scripted(Workload):
    """The episodes of group i and sibling j are always the same."""

    seed: int = 0
    failing: float = 0.0
    issued: list[int] = field(default_factory=list)

    def draw(self, generator: random.Random, size: int) -> Sequence[EpisodeShape]:
        self.issued.append(len(self.issued))
        return [self.shape(self.issued[-1], sibling) for sibling in range(size)]

    def shape(self, order: int, sibling: int) -> EpisodeShape:
        generator = random.Random(f"{self.seed} {order} {sibling}")
        lasts_s = generator.expovariate(1.0) + (20.0 if generator.random() < 0.05 else 0.0)
        is_valid = generator.random() >= self.failing
        return EpisodeShape((TurnShape(3, 3, 1),), after_s=lasts_s, is_valid=is_valid)


@dataclass
class Runner:
    """Plays the same episodes for the real dispatcher."""

    workload: Scripted
    positions: dict[str, int]
    buffer: TrajectoryBuffer
    serving: asyncio.Event
    """Cleared while new weights come in."""
    first: dict[str, int] = field(default_factory=dict)

    def oldest_version(self, episode_id: str) -> int | None:
        return self.first.get(episode_id)

    async def run(self, request: EpisodeRequest) -> Episode:
        shape = self.workload.shape(self.positions[request.task.id], request.sibling)
        try:
            await self.serving.wait()
            version = self.first[request.id] = self.buffer.version
            await asyncio.sleep(shape.after_s)
        finally:
            self.first.pop(request.id, None)
        outcome = Outcome.scored(1.0)
        if not shape.is_valid:
            outcome = Outcome.failed(ErrorKind.AGENT, "scripted")
        return Episode(
            request.id,
            request.task,
            turns=(turn(version),),
            outcome=outcome,
            group=request.group,
            sibling=request.sibling,
            epoch=request.epoch,
            duration_s=shape.after_s,
        )


async def real_steps(workload: Scripted, rules: FlowRules) -> tuple[list[list[int]], list[float]]:
    """The groups that each step trained, by their order, and the time when it ended."""
    source = TaskSource(tasks(2000), shuffle=False)
    positions = {task.id: index for index, task in enumerate(tasks(2000))}
    held = TrajectoryBuffer(rules, tasks=source, ledger=Ledger(), max_lost_in_a_row=10**6)
    serving = asyncio.Event()
    serving.set()
    runner = Runner(workload, positions, held, serving)
    trained: list[list[int]] = []
    ended: list[float] = []
    async with (
        Dispatcher(held, runner=runner, tasks=source) as dispatcher,
        asyncio.TaskGroup() as own,
    ):

        async def deliver(version: int) -> None:
            await asyncio.sleep(SWAP_S)
            dispatcher.set_version(version)
            serving.set()

        for version in range(STEPS):
            batch = await held.cut_batch(version=version)
            await asyncio.sleep(TRAIN_S)
            held.mark_trained(batch)
            trained.append([positions[group.issued.task.id] for group in batch.finished])
            ended.append(asyncio.get_running_loop().time())
            serving.clear()
            own.create_task(deliver(version + 1))
    return trained, ended


@pytest.mark.parametrize("stale", ["wait", "drop", "mask"])
@pytest.mark.parametrize(
    ("eta", "batch", "inflight"), [(0, 8, 8), (1, 8, 16), (1, 8, 12), (2, 12, 100), (4, 8, 20)]
)
@pytest.mark.parametrize(("failing", "drops"), [(0.0, False), (0.1, False), (0.1, True)])
def test_the_same_groups_are_trained_at_the_same_times(
    stale: Any, eta: int, batch: int, inflight: int, failing: float, drops: bool
) -> None:
    script = Scripted(((EpisodeShape(()),),), seed=eta, failing=failing)
    incomplete: Literal["train", "drop"] = "drop" if drops else "train"
    rules = FlowRules(
        RolloutSection(
            batch=batch,
            group_size=4,
            max_staleness=eta,
            max_inflight=inflight,
            stale=stale,
            wait_s=2.0,
            incomplete_groups=incomplete,
        )
    )
    setup = Setup(rules, script, AT_ONCE, TrainerSpeed(token_s=0.0, fixed_s=TRAIN_S))
    steps = simulated_steps(setup, steps=STEPS)
    trained, ended = simulate(real_steps(script, rules))
    assert [sorted(step.groups) for step in steps] == trained
    assert [step.ended_at for step in steps] == pytest.approx(ended, abs=1e-4)
