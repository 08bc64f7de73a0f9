r"""The training loop: cut a batch, step, publish, and never hold the rollouts back.

    batch = buffer.cut_batch(v) -> trainer.step -> trainer.publish(v + 1) -> engine.update_weights
                                                        \-> the next batch is cut meanwhile

`v` is the number of published updates. The step that makes v + 1 starts from v. The admission
gate opens for v + 1 only when the engine has confirmed it.

Supervised warm-up: the same trainer, one more loss, before the first episode.

How long a run waits: for its parts, from how long each may take, and for gradients.
"""

import asyncio
import math
import random
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from areal_sdk.config import Config
from areal_sdk.errors import DivergedError
from areal_sdk.gateway.tokens.demonstrations import to_demonstrations
from areal_sdk.gateway.tokens.renderer import Renderer
from areal_sdk.gateway.tokens.template import ChatTemplate
from areal_sdk.gateway.tokens.tokenizer import Tokenizer
from areal_sdk.loop.engines import hand_to_engine, hand_to_trainer, update_and_resume
from areal_sdk.loop.held_out import Evaluator
from areal_sdk.loop.program import Conversation
from areal_sdk.loop.progress import Progress
from areal_sdk.loop.services import Rig
from areal_sdk.loop.state import Checkpoints, RunState
from areal_sdk.process.threads import in_thread
from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.callers import CallerEpisodes, CallerTasks
from areal_sdk.rollout.dispatcher import Dispatcher
from areal_sdk.rollout.groups import RolloutBatch
from areal_sdk.rollout.tasks import TaskSource
from areal_sdk.telemetry import waiting
from areal_sdk.trainer import Demonstration, Trainer
from areal_sdk.types import WeightUpdate

T = TypeVar("T")

UPDATE_TIMEOUT_S = 600.0


@dataclass(slots=True)
class TrainingLoop:
    """Drives one run from its state to its end. Owns the clock, the version and nothing else."""

    rig: Rig
    trainer: Trainer
    state: RunState
    buffer: TrajectoryBuffer
    tasks: TaskSource | CallerTasks
    dispatcher: Dispatcher | CallerEpisodes
    checkpoints: Checkpoints
    evaluator: Evaluator
    progress: Progress
    _delivery: "asyncio.Task[None] | None" = field(default=None, repr=False)
    _work: "asyncio.Task[Any] | None" = field(default=None, repr=False)
    """What the trainer does to its end although the run is cancelled: `settle` waits for it."""
    _unreported: tuple[RolloutBatch, dict[str, float]] | None = None
    """A step that is taken, and in no metrics yet."""
    _began: float = 0.0
    _num_empty: int = 0
    _num_skipped: int = 0
    _is_in_step: bool = False

    @property
    def at_work(self) -> str | None:
        """The step or the checkpoint that the trainer works on now, if any."""
        return None if self._work is None or self._work.done() else self._work.get_name()

    @property
    def has_unsaved(self) -> bool:
        return bool(self.state.step) and not self.checkpoints.has_saved(self.state)

    async def save(self) -> None:
        """Checkpoint the state as it is."""
        saving = self.checkpoints.save(self.trainer, self.state)
        await self._to_its_end(saving, f"the checkpoint of step {self.state.step}")

    async def settle(self) -> bool:
        """Wait for the step or the save that a cancellation found at work.

        Returns whether the trainer's weights are now those of `state`, so that they can be saved.
        """
        if self._work is not None:
            await asyncio.wait({self._work})
        self._report()
        return not self._is_in_step and self.trainer.is_alive

    async def run(self) -> str:
        """Train until a limit is reached; returns why it ended."""
        self._began = time.monotonic() - self.state.train_seconds
        async with asyncio.TaskGroup() as background:
            self.evaluator.attach(background)
            async with self.dispatcher:
                try:
                    ended = await self._steps()
                    await self._delivered()
                finally:
                    if self._delivery is not None:
                        self._delivery.cancel()
            # With the engine to itself: no rollout is trained any more.
            await self.evaluator.finish()
        return ended

    async def _steps(self) -> str:
        while (ended := self._why_end()) is None:
            batch = await self._next_batch()
            if batch is None:
                return "max_minutes"
            if not batch.finished:
                return "tasks"
            await self._train_on(batch)
            await self.evaluator.maybe_begin(self._delivery)
            if self.checkpoints.is_due(self.state.step):
                await self.save()
            if batch.exhausted:
                return "tasks"
        return ended

    async def _next_batch(self) -> RolloutBatch | None:
        """None when `run.max_minutes` pass before there is one: callers may never come."""
        limit = asyncio.timeout(self._seconds_left())
        try:
            async with limit:
                return await self.buffer.cut_batch(
                    version=self.state.version, timeout_s=cut_timeout_s(self.rig.config)
                )
        except TimeoutError:
            if not limit.expired():
                raise
            self.state.train_seconds = time.monotonic() - self._began
            return None

    def _seconds_left(self) -> float | None:
        minutes = self.rig.config.run.max_minutes
        return None if minutes is None else self._began + 60 * minutes - time.monotonic()

    def _why_end(self) -> str | None:
        run, seconds_left = self.rig.config.run, self._seconds_left()
        if self.state.step >= run.steps:
            return "steps"
        if seconds_left is not None and seconds_left <= 0:
            return "max_minutes"
        if self.evaluator.reached:
            return "success"
        if self._num_empty >= run.max_empty_batches:
            return "solved or hopeless"
        return None

    async def _train_on(self, batch: RolloutBatch) -> None:
        """One step from v to v + 1, and the new weights on their way to the engine."""
        began = time.monotonic()
        if self.rig.engine.info.shares_device:
            await self._delivered()
        await hand_to_trainer(self.rig.engine)
        metrics = await self._to_its_end(
            self._step(batch, began=began), f"step {self.state.step + 1}"
        )
        # The engine may still be reading the file that this publish would overwrite.
        await self._delivered()
        has_update = bool(metrics.get("num_updates"))
        update = await self._publish(self.state.version, has_update=has_update)
        await hand_to_engine(self.rig.engine, self.trainer)
        self.state.train_seconds = time.monotonic() - self._began
        self._delivery = asyncio.create_task(
            self._deliver(update), name=f"deliver {update.version}"
        )
        for name, seconds in self.rig.cpu_seconds().items():
            metrics[f"cpu_{name}_s"] = seconds
        metrics["publish_s"] = time.monotonic() - began - metrics["step_s"]
        self._report()
        if self._num_skipped >= MAX_SKIPPED_STEPS:
            raise DivergedError(
                f"the gradients of {self._num_skipped} steps in a row were not finite, so nothing is "
                "learnt any more: lower trainer.learning_rate or algorithm.max_weight, or set "
                'trainer.precision = "float32"; the weights saved last are those before'
            )

    async def _step(self, batch: RolloutBatch, *, began: float) -> dict[str, float]:
        """Weights, books and state go from v to v + 1 together: what is saved agrees with itself."""
        self._is_in_step = True
        metrics = dict(
            await self.trainer.step(
                batch.groups,
                version=self.state.version,
                timeout_s=self.rig.config.trainer.step_timeout_s,
            )
        )
        self.buffer.mark_trained(batch)
        metrics["step_s"] = time.monotonic() - began
        self._count_idle(metrics, has_update=bool(metrics.get("num_updates")))
        self.state.step += 1
        self.state.train_seconds = time.monotonic() - self._began
        self.state.tasks = self.tasks.state()
        self.state.ledger = self.buffer.ledger.snapshot()
        self._is_in_step = False
        told = replace(batch, notices=(*batch.notices, *self.trainer.notices))
        self._unreported = (told, metrics)
        return metrics

    def _report(self) -> None:
        if self._unreported is not None:
            (batch, metrics), self._unreported = self._unreported, None
            values = self.progress.report_step(self.state, batch, metrics)
            self.rig.plugins.notify.on_step(step=self.state.step, metrics=values)

    async def _to_its_end(self, work: Coroutine[Any, Any, T], what: str) -> T:
        """The result of `work`, which a cancellation leaves to `settle`."""
        task = self._work = asyncio.create_task(work, name=what)
        return await asyncio.shield(task)

    def _count_idle(self, metrics: Mapping[str, float], *, has_update: bool) -> None:
        """Steps in a row that changed nothing: without anything to train, and with no finite gradient."""
        is_skipped = not has_update and bool(metrics.get("num_skipped_updates"))
        self._num_skipped = self._num_skipped + 1 if is_skipped else 0
        self._num_empty = 0 if has_update or is_skipped else self._num_empty + 1

    async def _publish(self, version: int, *, has_update: bool) -> WeightUpdate:
        """New weights; or, where they did not change, only the next number for the old ones."""
        return await self.trainer.publish(version) if has_update else WeightUpdate(version, None)

    async def _deliver(self, update: WeightUpdate) -> None:
        """Hand `update` to the engine; the gate opens when it has confirmed."""
        began = time.monotonic()
        try:
            async with waiting(f"engine: weights v{update.version}", timeout_s=UPDATE_TIMEOUT_S):
                await update_and_resume(self.rig.engine, update)
        except Exception as error:
            self.buffer.fail(error)  # whoever waits for a batch would wait for this gate
            raise
        self.buffer.set_version(update.version)
        self.progress.delivered(seconds=time.monotonic() - began)
        self.rig.plugins.notify.on_weights(update=update)

    async def _delivered(self) -> None:
        if self._delivery is not None:
            await self._delivery
            self._delivery = None


async def warm_up(rig: Rig, demonstrations: Sequence[Conversation], *, progress: Progress) -> None:
    """Train on demonstrations and serve the result as version 0: nothing was sampled before."""
    assert rig.trainer is not None
    section = rig.config.sft
    progress.enter(f"supervised warm-up: {section.steps} steps")
    rows = await in_thread(lambda: _rows(rig, demonstrations), name="demonstrations")
    generator = random.Random(rig.config.run.seed)
    size = min(section.batch, len(rows))
    await hand_to_trainer(rig.engine)
    num_skipped = 0
    for step in range(1, section.steps + 1):
        metrics = await rig.trainer.learn(
            generator.sample(rows, size), learning_rate=section.learning_rate
        )
        progress.report_warmup(step, section.steps, metrics)
        num_skipped = 0 if metrics["num_updates"] else num_skipped + 1
        if num_skipped >= MAX_SKIPPED_STEPS:
            raise DivergedError(
                f"the gradients of {num_skipped} warm-up steps in a row were not finite: lower "
                "sft.learning_rate, or look for a demonstration that breaks the model"
            )
    update = await rig.trainer.publish(0)
    await hand_to_engine(rig.engine, rig.trainer)
    await update_and_resume(rig.engine, update)


def _rows(rig: Rig, demonstrations: Sequence[Conversation]) -> list[Demonstration]:
    tokenizer, template = Tokenizer.load(rig.model_dir), ChatTemplate.load(rig.model_dir)
    renderer = Renderer(tokenizer, template, tool_format=rig.config.gateway.tool_format)
    return [
        row for conversation in demonstrations for row in to_demonstrations(conversation, renderer)
    ]


MIN_CUT_TIMEOUT_S = 3600.0
"""A batch may take this long, or as long as its episodes may."""


MAX_SKIPPED_STEPS = 3
"""In a row. One bad batch passes; weights that overflow do not recover."""

NO_CALLERS_S = 365 * 24 * 3600.0
"""Callers come when they like."""


def cut_timeout_s(config: Config) -> float:
    """For a batch: two generations of the longest episodes, with every retry, and their judges."""
    if config.serve.learn:
        return NO_CALLERS_S
    rollout = config.rollout
    longest_s = rollout.episode_timeout_s * (1 + rollout.infra_retries)
    num_judgements = rollout.max_inflight * len(config.rewards)
    judged_s = rollout.reward_timeout_s * math.ceil(num_judgements / rollout.reward_workers)
    return max(MIN_CUT_TIMEOUT_S, 2 * (longest_s + judged_s) + rollout.wait_s)


def stalled_s(config: Config) -> float:
    """For a slot in the gate: a batch has to come, to be trained, and its weights to arrive."""
    return cut_timeout_s(config) + 2 * config.trainer.step_timeout_s
