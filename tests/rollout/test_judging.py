"""Claims about an episode that plays hold while it is judged."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from areal_sdk.agent import EpisodeContext, RolloutWorkflow
from areal_sdk.config import RolloutSection
from areal_sdk.flow import FlowRules
from areal_sdk.gateway.app import Gateway
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.rollout.agents.runner import EpisodeRunner
from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.dispatcher import Dispatcher
from areal_sdk.rollout.groups import RolloutBatch
from areal_sdk.rollout.judging.reward_pool import RewardPool, RewardSpec
from areal_sdk.rollout.tasks import TaskSource
from areal_sdk.telemetry.ledger import DropReason, Ledger
from areal_sdk.testing import ScriptedEngine
from areal_sdk.types import Task, WeightUpdate
from tests.rollout import sample_rewards

FILE = Path(sample_rewards.__file__)
RELEASED = f"{FILE}::when_released"


class OneTurn(RolloutWorkflow):
    async def run_episode(self, task: Task, context: EpisodeContext) -> None:
        await context.generate([{"role": "user", "content": task.id}])


@dataclass
class Judging:
    """Tasks, agent, real reward workers and books; `step` stands for a trainer."""

    engine: ScriptedEngine
    gateway: Gateway
    rewards: RewardPool
    buffer: TrajectoryBuffer
    dispatcher: Dispatcher
    desk: Path
    """Directory where a task's judge waits for `release`, and says that it began."""

    async def cut(self) -> RolloutBatch:
        batch = await self.buffer.cut_batch(version=self.buffer.version, timeout_s=60.0)
        self.buffer.mark_trained(batch)
        return batch

    async def step(self) -> list[str]:
        batch = await self.cut()
        await self.engine.update_weights(WeightUpdate(self.buffer.version + 1, path=None))
        self.dispatcher.set_version(self.buffer.version + 1)
        return [group.issued.task.id for group in batch.finished]

    async def begun(self, count: int = 1) -> None:
        """`count` judges wait for their release."""
        async with asyncio.timeout(30):
            while len(self.judges) < count:  # noqa: ASYNC110 - they are in other processes
                await asyncio.sleep(0.01)

    @property
    def judges(self) -> list[int]:
        """Processes that began to judge the held task."""
        path = self.desk / "judging"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def release(self) -> None:
        (self.desk / "release").touch()

    async def buffered(self, count: int) -> None:
        async with asyncio.timeout(30):
            while self.buffer.ledger.buffered < count:
                await self.buffer.changed.wait()


@asynccontextmanager
async def judging(
    model_dir: Path,
    tmp_path: Path,
    *,
    rewards: tuple[str, ...] = (RELEASED,),
    workers: int = 2,
    **rollout: Any,
) -> AsyncIterator[Judging]:
    """The first task, `held`, is judged when it is released; the others at once."""
    desk = tmp_path / "desk"
    desk.mkdir()
    given = [Task("held", {"directory": str(desk)}), *(Task(f"t{n}") for n in range(20))]
    engine = ScriptedEngine("ok", model_dir=model_dir)
    gateway = Gateway(engine, renderer=Renderer.load(model_dir), model_name="tiny")
    source = TaskSource(given, shuffle=False)
    ledger = Ledger()
    section = RolloutSection(batch=1, group_size=1, max_staleness=1, max_inflight=4, **rollout)
    books = TrajectoryBuffer(FlowRules(section), tasks=source, ledger=ledger)
    specs = [RewardSpec(f"judge-{n}", reward) for n, reward in enumerate(rewards)]
    async with AsyncExitStack() as stack:
        await gateway.start()
        stack.push_async_callback(gateway.aclose)
        pool = await stack.enter_async_context(
            RewardPool(specs, log_dir=tmp_path, size=workers, timeout_s=60.0)
        )
        runner = await stack.enter_async_context(
            EpisodeRunner(OneTurn(), gateway=gateway, rewards=pool)
        )
        dispatcher = await stack.enter_async_context(Dispatcher(books, runner=runner, tasks=source))
        yield Judging(engine, gateway, pool, books, dispatcher, desk)
    ledger.check()
    assert ledger.running == 0


async def test_the_trainer_holds_for_an_episode_that_is_being_judged(
    model_dir: Path, tmp_path: Path
) -> None:
    """The step that starts from 1 is the last that may train what was sampled from 0."""
    async with judging(model_dir, tmp_path, stale="wait", wait_s=60.0) as run:
        await run.begun()
        assert await run.step() == ["t0"]
        await run.buffered(1)  # enough for a step that holds for nobody
        cutting = asyncio.create_task(run.step())
        for _ in range(20):
            await asyncio.sleep(0)
        assert not cutting.done()
        run.release()
        assert await cutting == ["held"]
        assert DropReason.STALE not in run.buffer.ledger.dropped


async def test_an_episode_that_no_step_can_train_is_stopped_while_it_is_judged(
    model_dir: Path, tmp_path: Path
) -> None:
    async with judging(model_dir, tmp_path, stale="drop") as run:
        await run.begun()
        assert [await run.step() for _ in range(2)] == [["t0"], ["t1"]]
        async with asyncio.timeout(30):
            while not run.buffer.ledger.dropped.get(DropReason.STALE):
                await run.buffer.changed.wait()


async def test_stopping_an_episode_ends_its_judgement_and_none_of_the_workers(
    model_dir: Path, tmp_path: Path
) -> None:
    both = (RELEASED, RELEASED)
    async with judging(model_dir, tmp_path, rewards=both, workers=3, stale="drop") as run:
        await run.begun(2)
        assert [await run.step() for _ in range(4)] == [["t0"], ["t1"], ["t2"], ["t3"]]
        async with asyncio.timeout(30):
            while not run.buffer.ledger.dropped.get(DropReason.STALE):
                await run.buffer.changed.wait()
        assert run.rewards._pool.num_replaced == 0
        async with asyncio.timeout(30):  # all three are free again: nobody released the judges
            await asyncio.gather(*(run.rewards._pool._free.get() for _ in range(3)))
