"""The whole rollout core over a real gateway: streaming, weights in flight, memory."""

import asyncio
import gc
import os
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest

from areal_sdk.agent import EpisodeContext, RolloutWorkflow
from areal_sdk.config import RolloutSection
from areal_sdk.engine import GenerateRequest
from areal_sdk.flow import FlowRules
from areal_sdk.gateway.app import Gateway
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.rollout.agents.runner import EpisodeRunner
from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.dispatcher import Dispatcher
from areal_sdk.rollout.evaluation import evaluate_tasks
from areal_sdk.rollout.groups import RolloutBatch
from areal_sdk.rollout.tasks import TaskSource
from areal_sdk.telemetry.ledger import Ledger
from areal_sdk.testing import ScriptedEngine, scripted_logprob
from areal_sdk.types import Outcome, Task, WeightUpdate
from tests.rollout.simulation import tasks


class TwoTurns(RolloutWorkflow):
    async def run_episode(self, task: Task, context: EpisodeContext) -> Outcome:
        messages = [{"role": "user", "content": f"task {task.id}"}]
        turn = await context.generate(messages)
        messages += [turn.message, {"role": "user", "content": "and now?"}]
        await context.generate(messages)
        return Outcome.scored(float(context.seed % 3))


class Rollouts:
    """Engine, gateway, runner, dispatcher and buffer; `step` stands for a trainer."""

    def __init__(
        self,
        engine: ScriptedEngine,
        model_dir: Path,
        *,
        batch: int = 8,
        eta: int = 1,
        max_inflight: int = 160,
    ) -> None:
        self.engine = engine
        self.gateway = Gateway(engine, renderer=Renderer.load(model_dir), model_name="tiny")
        self.ledger = Ledger()
        rollout = RolloutSection(
            batch=batch, group_size=4, max_staleness=eta, max_inflight=max_inflight
        )
        source = TaskSource(tasks(16))
        self.buffer = TrajectoryBuffer(FlowRules(rollout), tasks=source, ledger=self.ledger)
        self.runner = EpisodeRunner(TwoTurns(), gateway=self.gateway)
        self.dispatcher = Dispatcher(self.buffer, runner=self.runner, tasks=source)
        self.version = 0

    async def __aenter__(self) -> "Rollouts":
        self._stack = AsyncExitStack()
        await self.gateway.start()
        self._stack.push_async_callback(self.gateway.aclose)
        await self._stack.enter_async_context(self.runner)
        await self._stack.enter_async_context(self.dispatcher)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()
        assert self.ledger.running == 0

    async def cut(self) -> RolloutBatch:
        batch = await self.buffer.cut_batch(version=self.version, timeout_s=60.0)
        self.buffer.mark_trained(batch)
        return batch

    def confirm(self, version: int) -> None:
        """The engine serves `version`."""
        self.version = version
        self.dispatcher.set_version(version)

    async def step(self) -> None:
        await self.cut()
        await self.engine.update_weights(WeightUpdate(self.version + 1, path=None))
        self.confirm(self.version + 1)


async def test_weights_change_under_running_episodes_and_every_token_knows_its_version(
    model_dir: Path,
) -> None:
    """The engine takes each update in the middle of somebody's turn."""
    updates: asyncio.Queue[int] = asyncio.Queue()
    taken: asyncio.Queue[int] = asyncio.Queue()

    async def swap_mid_turn(request: GenerateRequest, index: int) -> None:
        if index == 4 and not updates.empty():
            version = updates.get_nowait()
            await engine.update_weights(WeightUpdate(version, path=None))
            taken.put_nowait(version)

    engine = ScriptedEngine("some words", model_dir=model_dir, on_token=swap_mid_turn)
    num_mixed = 0
    async with Rollouts(engine, model_dir, eta=2, max_inflight=4) as rollouts:
        for version in range(12):
            batch = await rollouts.cut()
            for trajectory in (t for group in batch.groups for t in group.trajectories):
                trained = [v for v in trajectory.versions if v >= 0]
                assert trained == sorted(trained)
                assert version - trained[0] <= 2
                num_mixed += len(set(trained)) > 1
                at = int(trajectory.loss_mask.argmax())
                expected = scripted_logprob(int(trajectory.tokens[at]), 0)
                assert trajectory.logprobs[at] == np.float32(expected)
            updates.put_nowait(version + 1)
            async with asyncio.timeout(30):
                rollouts.confirm(await taken.get())
    assert num_mixed >= 10
    assert rollouts.ledger.trained == 96


async def test_an_evaluation_runs_beside_training_and_enters_no_books(model_dir: Path) -> None:
    engine = ScriptedEngine("ok", model_dir=model_dir)
    async with Rollouts(engine, model_dir) as rollouts, asyncio.TaskGroup() as beside:
        evaluation = beside.create_task(
            evaluate_tasks(rollouts.runner, tasks(16), name="eval.1", samples=2)
        )
        for _ in range(5):
            await rollouts.step()
        report = await evaluation
    assert report.num_scored == 32
    books = rollouts.ledger
    assert books.trained == 40
    assert books.started == books.kept + sum(books.dropped.values())


@pytest.mark.long
async def test_two_thousand_episodes_leave_memory_flat(model_dir: Path) -> None:
    engine = ScriptedEngine("words", model_dir=model_dir, keep_requests=1, tokens_per_chunk=16)
    resident: list[int] = []
    async with Rollouts(engine, model_dir, batch=40) as rollouts:
        for _ in range(50):
            await rollouts.step()
            if rollouts.version % 5 == 0:
                gc.collect()
                resident.append(_resident_bytes())
    assert rollouts.ledger.trained == 2000
    growth = resident[-1] / resident[0] - 1
    assert growth < 0.05, f"{growth:.1%} after the first 200 episodes"


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="utf-8") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
