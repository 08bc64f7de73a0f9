r"""The steps of a run: cut a batch, learn from it, publish the weights. Rollouts continue meanwhile.

    batch = cut_batch(v) -> trainer.step -> trainer.publish(v + 1) -> engine.update_weights
                                                  \-> the next batch is cut meanwhile

`v` is the number of published updates. The step that makes v + 1 starts from v. The admission
gate opens for v + 1 only when the engine has confirmed it.
"""

import asyncio
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from areal_sdk.config import Config
from areal_sdk.errors import DivergedError
from areal_sdk.loop.evaluation.evaluator import Evaluator
from areal_sdk.loop.learning.endings import LatestLessons
from areal_sdk.loop.learning.guard import CollapseGuard
from areal_sdk.loop.learning.learner import CURE, Learner
from areal_sdk.loop.learning.state import RunState
from areal_sdk.loop.progress import Progress
from areal_sdk.loop.services.opening import (
    Services,
    hand_to_engine,
    hand_to_trainer,
    update_and_resume,
)
from areal_sdk.models.rounding import LITTLE
from areal_sdk.process.family import num_cores
from areal_sdk.process.threads import in_thread
from areal_sdk.records.diagnosis.collapse import Fall
from areal_sdk.rollout.groups import RolloutBatch
from areal_sdk.rollout.source import EpisodeSource
from areal_sdk.telemetry import waiting
from areal_sdk.telemetry.token_log import StepTokens, TokenWriter
from areal_sdk.trajectory import Credit
from areal_sdk.types import WeightUpdate

T = TypeVar("T")

UPDATE_TIMEOUT_S = 1800.0
"""Deadline of a weight update in seconds, without the time for its bytes. Within it an engine that died can start
again, and a server can finish its requests."""
SLOWEST_BYTES_PER_S = 5e6
"""Lowest speed at which weights may travel. The deadline grows by it: 140 GB have eight hours, since a slow transfer
must not end a run. Most engines have shorter deadlines, whose errors say more. This one is for the others."""


FEW_UPDATES = 10
"""Number of updates up to which most weights keep their old value in bfloat16, at any usual learning rate."""


@dataclass(slots=True)
class TrainingLoop:
    """Takes the steps of one run from its state to its end."""

    services: Services
    learner: Learner
    source: EpisodeSource
    evaluator: Evaluator
    progress: Progress
    guard: CollapseGuard
    _delivery: "asyncio.Task[None] | None" = field(default=None, repr=False)
    """New weights on their way to the engine."""
    _delivery_timeout_s: float = UPDATE_TIMEOUT_S
    _unreported: tuple[RolloutBatch, dict[str, float], Mapping[str, Credit]] | None = None
    """A step that is taken but not in the metrics yet."""
    _began: float = 0.0
    _num_skipped: int = 0
    _has_told_seen: bool = False
    _lessons: LatestLessons = field(init=False, repr=False)
    _tokens: TokenWriter = field(init=False, repr=False)
    _unwritten: tuple[int, StepTokens] | None = None
    """The tokens of a step that is taken but not in its file yet."""
    _writing: "asyncio.Task[None] | None" = field(default=None, repr=False)
    """The tokens of a step on their way to their file, beside the next step."""

    def __post_init__(self) -> None:
        run = self.services.config.run
        self._lessons = LatestLessons(run.max_empty_batches)
        self._tokens = TokenWriter(self.services.run_dir.tokens, keep_bytes=run.keep_token_bytes)

    @property
    def state(self) -> RunState:
        return self.learner.state

    async def run(self) -> str:
        """Train until a limit is reached; returns why it ended."""
        self._began = time.monotonic() - self.state.train_seconds
        self.learner.on_settled = self._report_at_once
        self._tokens.forget_after(self.state.step)
        async with asyncio.TaskGroup() as background:
            self.evaluator.attach(background)
            async with self.source:
                try:
                    ended = await self._steps()
                    await self._delivered()
                    await self._tokens_written()
                finally:
                    for work in (self._delivery, self._writing):
                        if work is not None:
                            work.cancel()
            # The rollouts have ended, so this evaluation has the engine to itself.
            await self.evaluator.finish()
        return ended

    async def _steps(self) -> str:
        while (ended := self._why_end()) is None:
            batch = await self._next_batch()
            if batch is None:
                return "max_minutes"
            if not batch.finished:
                return "tasks"
            fall = await self.guard.look(batch.metrics)
            await self._train_on(batch, fall)
            await self.evaluator.maybe_begin(self._delivery)
            if self.learner.checkpoints.is_due(self.state.step, at_once=fall is not None):
                await self._tokens_written()  # a run that goes on from there has them
                await self.learner.begin_save()
                await self._take_room()
            if batch.exhausted:
                return "tasks"
        return ended

    async def _take_room(self) -> None:
        """End with `RanksChange` if there is room for more ranks, once the latest step is saved."""
        if (change := await self.services.ranks.change()) is not None:
            await self.learner.save()
            await self.evaluator.finish()
            raise change

    async def _next_batch(self) -> RolloutBatch | None:
        """The next batch; None if `run.max_minutes` pass before, since callers may never come."""
        limit = asyncio.timeout(self._seconds_left())
        try:
            async with limit:
                # Its episodes may have to wait for the weights that are on their way.
                return await self.source.buffer.cut_batch(
                    version=self.state.version,
                    timeout_s=cut_timeout_s(self.services.config) + self._delivery_timeout_s,
                )
        except TimeoutError:
            if not limit.expired():
                raise
            self.state.train_seconds = time.monotonic() - self._began
            return None

    def _seconds_left(self) -> float | None:
        minutes = self.services.config.run.max_minutes
        return None if minutes is None else self._began + 60 * minutes - time.monotonic()

    def _why_end(self) -> str | None:
        run, seconds_left = self.services.config.run, self._seconds_left()
        if self.state.step >= run.steps:
            return "steps"
        if seconds_left is not None and seconds_left <= 0:
            return "max_minutes"
        if self.evaluator.reached:
            return "success"
        if self.guard.is_spent:
            return "collapsed"
        if (ending := self._lessons.ending(self.services.run_dir.path)) is not None:
            ended, told = ending
            self.progress.say(f"note: {told}")
            return ended
        return None

    async def _train_on(self, batch: RolloutBatch, fall: Fall | None) -> None:
        """Train one step, from version v to v + 1, and send the new weights to the engine.

        After a fall, earlier weights become version v + 1 instead.
        """
        began = time.monotonic()
        if self.services.engine.info.shares_device:
            await self._delivered()
        await hand_to_trainer(self.services.engine)
        metrics = await self.learner.learn(
            self._taken(batch, fall, began=began), f"step {self.state.step + 1}"
        )
        # The engine may still be reading the file that this publish would overwrite.
        await self._delivered()
        has_update = bool(metrics.get("num_updates")) or fall is not None
        update = await self._publish(self.state.version, has_update=has_update)
        await hand_to_engine(self.services.engine, self.learner.trainer)
        self.state.train_seconds = time.monotonic() - self._began
        self._delivery_timeout_s = self.services.engine.info.restart_s + await in_thread(
            lambda: update_timeout_s(update.path), name="size of weights"
        )
        self._delivery = asyncio.create_task(
            self._deliver(update), name=f"deliver {update.version}"
        )
        for name, seconds in self.services.cpu_seconds().items():
            metrics[f"cpu_{name}_s"] = seconds
        metrics["cores"] = float(num_cores())
        metrics["ranks"] = float(self.services.ranks.num)
        metrics["publish_s"] = time.monotonic() - began - metrics["step_s"]
        if update.share_seen is not None:
            metrics["share_seen"] = update.share_seen
            self._tell_what_is_seen(update.share_seen)
        self._report()
        await self._tokens_written()
        if self._unwritten is not None:
            write = partial(self._tokens.write, *self._unwritten)
            self._unwritten = None
            self._writing = asyncio.create_task(in_thread(write, name="write tokens"))
        if self._num_skipped >= MAX_SKIPPED_STEPS:
            raise DivergedError(
                f"the gradients of {self._num_skipped} steps in a row were not finite, so nothing is "
                "learnt any more: lower trainer.learning_rate or algorithm.max_weight, or set "
                'trainer.precision = "float32"; the weights saved last are those before'
            )

    async def _step(self, batch: RolloutBatch) -> tuple[RolloutBatch, dict[str, float]]:
        """Train on the batch."""
        trainer = self.learner.trainer
        limit_s = self.services.config.trainer.step_timeout_s
        what = f"trainer: step {self.state.version + 1}"
        async with waiting(what, timeout_s=limit_s, slack_s=60.0):  # the trainer's error says more
            metrics = dict(
                await trainer.step(batch.groups, version=self.state.version, timeout_s=limit_s)
            )
        self.source.buffer.mark_trained(batch)
        self._lessons.add(batch.metrics, metrics)
        is_skipped = not metrics.get("num_updates") and bool(metrics.get("num_skipped_updates"))
        self._num_skipped = self._num_skipped + 1 if is_skipped else 0
        return replace(batch, notices=(*batch.notices, *trainer.notices)), metrics

    async def _go_back(
        self, batch: RolloutBatch, fall: Fall
    ) -> tuple[RolloutBatch, dict[str, float]]:
        """Put earlier weights back. The batch, and every other sample of later weights, is not trained."""
        await self.guard.put_back(fall)
        self.source.buffer.take_back(batch, valid_from=self.state.version + 1)
        self._num_skipped = 0
        self._lessons.forget()
        metrics = {"num_updates": 0.0, "num_trained": 0.0, "num_tokens": 0.0, "loss": 0.0}
        notices = (*batch.notices, self.guard.told(fall))
        return replace(batch, finished=(), notices=notices), {
            **metrics,
            "rolled_back_to": float(fall.to),
        }

    async def _taken(
        self, batch: RolloutBatch, fall: Fall | None, *, began: float
    ) -> dict[str, float]:
        """Take weights, ledger and state from v to v + 1 together, so that a checkpoint is consistent."""
        work = self._step(batch) if fall is None else self._go_back(batch, fall)
        batch, metrics = await work
        books, credit = self.source.buffer, self.learner.trainer.credit
        metrics["step_s"] = time.monotonic() - began
        self.guard.learnt(metrics)
        self.state.step += 1
        self.state.train_seconds = time.monotonic() - self._began
        self.state.tasks = self.source.state()
        self.state.ledger = books.ledger.snapshot()
        self.progress.report_state(self.state, waiting=books.waiting_groups())
        self._unreported = (batch, metrics, credit)
        if fall is None and (tokens := self.learner.trainer.tokens) is not None:
            self._unwritten = self.state.step, tokens
        return metrics

    def _report(self) -> None:
        if self._unreported is not None:
            (batch, metrics, credit), self._unreported = self._unreported, None
            values = self.progress.report_step(self.state, batch, metrics, credit)
            # As they are now: a run that was stopped reports its last step after it has cancelled its episodes.
            self.services.run_dir.write_ledger(self.source.buffer.ledger.snapshot())
            self.services.plugins.notify.on_step(step=self.state.step, metrics=values)

    def _report_at_once(self) -> None:
        """Report a step that the cancelled run has taken, and write its tokens."""
        self._report()
        if self._unwritten is not None:
            self._tokens.write(*self._unwritten)
            self._unwritten = None

    async def _tokens_written(self) -> None:
        if self._writing is not None:
            await self._writing
            self._writing = None

    async def _publish(self, version: int, *, has_update: bool) -> WeightUpdate:
        """The update to `version`: the published weights, or the number alone if the weights did not change."""
        if not has_update:
            return WeightUpdate(version, None)
        return await self.learner.trainer.publish(version)

    def _tell_what_is_seen(self, share: float) -> None:
        """Say once if the engine samples weights that hardly show what was learnt."""
        if self._has_told_seen or share >= LITTLE or self.state.version < FEW_UPDATES:
            return
        self._has_told_seen = True
        self.progress.say(
            f"note: the engine samples rounded weights: {100 * (1 - share):.0f} % of those that training "
            f"changed have their old value there (train/share_seen); {CURE}"
        )

    async def _deliver(self, update: WeightUpdate) -> None:
        """Hand `update` to the engine. The gate opens once the engine has confirmed the update."""
        began = time.monotonic()
        try:
            what = f"engine: weights v{update.version}"
            async with waiting(what, timeout_s=self._delivery_timeout_s):
                await update_and_resume(self.services.engine, update)
        except Exception as error:
            self.source.buffer.fail(error)  # without this version no further batch would come
            raise
        self.source.set_version(update.version)
        self.progress.delivered(update.version, seconds=time.monotonic() - began)
        self.services.plugins.notify.on_weights(update=update)

    async def _delivered(self) -> None:
        if self._delivery is not None:
            await self._delivery
            self._delivery = None


MIN_CUT_TIMEOUT_S = 3600.0
"""Shortest deadline of a batch. If its episodes may take longer, so may the batch."""

MAX_SKIPPED_STEPS = 3
"""Number of steps in a row without a finite gradient that end the run. One bad batch may pass, but weights that
overflowed do not recover."""

NO_CALLERS_S = 365 * 24 * 3600.0
"""Deadline of a batch in a run that learns from callers, who come when they like: practically none."""


def cut_timeout_s(config: Config) -> float:
    """Deadline of a batch: two rounds of the longest episodes, with every retry, and of their rewards."""
    if config.serve.learn:
        return NO_CALLERS_S
    rollout = config.rollout
    longest_s = rollout.episode_timeout_s * (1 + rollout.infra_retries)
    num_judgements = rollout.max_inflight * len(config.rewards)
    judged_s = rollout.reward_timeout_s * math.ceil(num_judgements / rollout.reward_workers)
    return max(MIN_CUT_TIMEOUT_S, 2 * (longest_s + judged_s) + rollout.wait_s)


def stalled_s(config: Config, *, update_s: float) -> float:
    """Deadline for the gate to open again: until then a batch is cut and trained, and its weights reach the engine."""
    return cut_timeout_s(config) + 2 * config.trainer.step_timeout_s + 2 * update_s


def update_timeout_s(weights: str | Path | None) -> float:
    """Deadline of new weights, by the size of their file or directory. Weights on another machine count as empty."""
    if weights is None:
        return UPDATE_TIMEOUT_S
    path = Path(weights)
    try:
        files = [*path.iterdir()] if path.is_dir() else [path]
        num_bytes = sum(file.stat().st_size for file in files)
    except OSError:
        num_bytes = 0
    return UPDATE_TIMEOUT_S + num_bytes / SLOWEST_BYTES_PER_S
