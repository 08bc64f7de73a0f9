"""A fine-tuning run: measure, turn the data into tokens, take the steps, measure again. No training episode is played.

    make_plan -> run_finetuning: engine measures -> trainer: held-out loss, steps, export -> engine measures

Engine and trainer never run side by side: an evaluation happens before the trainer starts, and after
it has written the final weights.
"""

import logging
import math
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from areal_sdk.config import Config
from areal_sdk.errors import ConfigError, DivergedError
from areal_sdk.finetune.begun import BegunWith, digests
from areal_sdk.finetune.objectives import (
    FinetuneObjective,
    Imitation,
    Order,
    Preference,
    RewardModelling,
)
from areal_sdk.finetune.preferences import DPO
from areal_sdk.finetune.rendering import Dataset
from areal_sdk.finetune.sources import Sources
from areal_sdk.loop.evaluation.best import BestWeights
from areal_sdk.loop.evaluation.earlier import BEFORE, recorded_before, recorded_loss
from areal_sdk.loop.evaluation.evaluator import Evaluator, Reports
from areal_sdk.loop.learning.learner import Learner, open_learner, write_final
from areal_sdk.loop.learning.state import RunState, RunSummary
from areal_sdk.loop.learning.steps import MAX_SKIPPED_STEPS
from areal_sdk.loop.learning.training import held_out_tasks
from areal_sdk.loop.plan.models import FoundModel, at_origin, check_chats, find_model, whose_weights
from areal_sdk.loop.plan.parts import check_engine_serves, find_preset, make_trainer
from areal_sdk.loop.plan.program import Program, load_program
from areal_sdk.loop.plan.tasks import HeldOut
from areal_sdk.loop.progress import Progress
from areal_sdk.loop.runs import Start
from areal_sdk.loop.services.opening import fail_with_ranks, open_launcher, open_services
from areal_sdk.plugins import Plugins
from areal_sdk.process.threads import in_thread
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.directories import recover
from areal_sdk.telemetry.live.terminal import counted
from areal_sdk.trainer import PresetSpec
from areal_sdk.types import WeightUpdate

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FinetunePlan:
    """Everything that a fine-tuning run needs, found and checked."""

    config: Config
    plugins: Plugins
    model: FoundModel
    preset: PresetSpec
    objective: FinetuneObjective
    notes: tuple[str, ...] = ()
    """Notes about the data, and about rows that were left out."""
    program: Program | None = None
    """The agent whose held-out tasks are measured; None: only the held-out loss is measured."""
    eval_tasks: Mapping[str, HeldOut] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return (self.config.finetune.objective or "").replace("_", "-")

    @property
    def splits(self) -> Sequence[str]:
        return tuple(self.eval_tasks)

    def run(self, start: Start) -> Coroutine[Any, Any, RunSummary]:
        return run_finetuning(self, start)


def make_plan(config: Config, *, plugins: Plugins) -> FinetunePlan:
    """Find model, data and held-out tasks; ConfigError for what is missing or wrong.

    Blocks while a model is fetched and the data is read: call it before the event loop starts.
    """
    section = config.finetune
    if section.objective is None:
        raise ConfigError(
            "finetune.objective is not set: use areal-sdk sft, dpo, reward-model or distill"
        )
    if not section.data:
        raise ConfigError("no data: give files or run directories (finetune.data)")
    model_dir = find_model(config.init_from or config.model)
    preset = find_preset(config, plugins)
    make_trainer(
        config, model_dir, plugins=plugins, preset=preset, log_dir=Path(), say=logger.warning
    )
    model = check_chats(config, model_dir, plugins)
    objective, notes = _objective(config, model)
    config = _with_steps(config, len(objective.rows))
    program = None
    if config.agent or config.env or config.command:
        if section.objective == "reward_model":
            raise ConfigError(
                "a reward model plays no tasks: leave the agent out, and give held-out pairs "
                "(--eval-data)"
            )
        check_engine_serves(config, model_dir, plugins)  # it plays tasks; learning needs no engine
        program = load_program(config, plugins=plugins)
    eval_tasks = {} if program is None else held_out_tasks(config, program, plugins)
    return FinetunePlan(config, plugins, model, preset, objective, notes, program, eval_tasks)


def _objective(config: Config, model: FoundModel) -> tuple[FinetuneObjective, tuple[str, ...]]:
    section, settings = config.finetune, config.trainer
    sources = Sources(section, model.directory, model.renderer)
    if section.objective == "sft":
        rows = sources.demonstrations(section.data)
        kept = sources.demonstrations(section.eval_data) if section.eval_data else None
        imitation = Imitation(settings, rows.rows, kept.rows if kept else ())
        return imitation, (*_describe(rows, "sequence"), *_held_out(kept, rows))
    pairs = sources.pairs(section.data)
    unseen = sources.pairs(section.eval_data) if section.eval_data else None
    said = (*_describe(pairs, "pair"), *_held_out(unseen, pairs))
    held_out = unseen.rows if unseen else ()
    if section.objective == "dpo":
        dpo = DPO(section.beta, section.length_normalised)
        return Preference(settings, pairs.rows, held_out, dpo=dpo), said
    return RewardModelling(settings, pairs.rows, held_out), said


def _describe(found: Dataset[Any], what: str) -> tuple[str, ...]:
    return (
        f"data: {counted(len(found.rows), what)}, {counted(found.num_trained, 'trained token')}",
        *found.notes(),
    )


def _held_out(found: Dataset[Any] | None, trained: Dataset[Any]) -> tuple[str, ...]:
    if found is None:
        return ()
    known = {*digests(trained.rows)}
    num_known = sum(digest in known for digest in digests(found.rows))
    told = f", of which {num_known} are trained too: they measure memory" if num_known else ""
    return f"held out: {counted(len(found.rows), 'row')}{told}", *found.notes()


def _with_steps(config: Config, num_rows: int) -> Config:
    """`run.steps` where it was given, else as many as `finetune.epochs` need."""
    if "steps" in config.run.model_fields_set:
        return config
    section = config.finetune
    size = min(section.batch, num_rows)
    steps = max(1, math.ceil(section.epochs * num_rows / size))
    return config.model_copy(update={"run": config.run.model_copy(update={"steps": steps})})


async def run_finetuning(plan: FinetunePlan, start: Start) -> RunSummary:
    """Run the plan from its first step, or go on from the checkpoint in `start`."""
    run_dir, state, progress = start.run_dir, start.state, start.progress
    checkpoint = start.checkpoint
    config = plan.config
    model = await in_thread(lambda: at_origin(plan.model, run_dir, config), name="find origin")
    plan = replace(plan, model=model)
    await in_thread(lambda: recover(run_dir.checkpoints), name="recover checkpoints")
    progress.begin(state)
    async with progress:
        for note in (whose_weights(plan.model.directory), *plan.notes):
            if note:
                progress.say(note)
        before: Reports = {}
        if config.eval.before and checkpoint is None:
            before = await _measure(plan, plan.model, BEFORE, run_dir, state, progress)
        elif config.eval.before:
            before = await in_thread(
                lambda: recorded_before(run_dir, plan.splits), name="read what was measured before"
            )
        ended, losses = await _learn(plan, run_dir, state, progress, checkpoint)
        after: Reports = {}
        if config.eval.after:
            final = replace(plan.model, directory=run_dir.checkpoints / "final")
            after = await _measure(plan, final, "after", run_dir, state, progress)
        summary = RunSummary(
            run_dir=str(run_dir.path),
            steps=state.step,
            version=state.version,
            train_seconds=state.train_seconds,
            ended=ended,
            before=before,
            after=after,
            held_out=losses,
        )
        progress.report_end(summary)
        return summary


async def _measure(
    plan: FinetunePlan,
    model: FoundModel,
    name: str,
    run_dir: RunDir,
    state: RunState,
    progress: Progress,
) -> Reports:
    """Play the held-out tasks on `model`, where there are any."""
    if plan.program is None or not plan.eval_tasks:
        return {}
    progress.enter(f"evaluating {name}: the engine loads the model")
    async with open_services(
        plan.config,
        plan.program,
        model=model,
        plugins=plan.plugins,
        run_dir=run_dir,
        say=progress.say,
    ) as services:
        if state.step:  # the engine calls what it loaded version 0
            await services.engine.update_weights(WeightUpdate(state.step, None))
        best = await in_thread(lambda: BestWeights(run_dir.checkpoints), name="recall best")
        evaluator = Evaluator(services, plan.eval_tasks, state, progress, best)
        return await evaluator.measure(name, step=state.step)


async def _learn(
    plan: FinetunePlan,
    run_dir: RunDir,
    state: RunState,
    progress: Progress,
    checkpoint: Path | None,
) -> tuple[str, Mapping[str, float]]:
    """Take the steps and write the final weights. Returns the reason why the steps ended, and the held-out losses."""
    async with _open_learner(plan, run_dir, state, progress) as learner:
        if checkpoint is not None:
            await learner.load(checkpoint)
        objective = await _prepare(plan.objective, learner, run_dir, progress)
        steps = _Steps(replace(plan, objective=objective), learner, progress)
        if plan.config.finetune.eval_data:
            progress.enter("measuring the loss on held-out data")
        before = recorded_loss(run_dir, BEFORE) if state.step else await steps.measure(BEFORE)
        ended = await steps.run()
        losses = {**before, **await steps.measure("after")}
        await learner.save()
        await write_final(learner, run_dir, progress)
        return ended, losses


@asynccontextmanager
async def _open_learner(
    plan: FinetunePlan, run_dir: RunDir, state: RunState, progress: Progress
) -> AsyncIterator[Learner]:
    progress.enter("starting: the trainer loads the model")
    opening = open_launcher(plan.config, plugins=plan.plugins, run_dir=run_dir, say=progress.say)
    async with opening as launcher:
        trainer = make_trainer(
            plan.config,
            plan.model.directory,
            plugins=plan.plugins,
            preset=plan.preset,
            log_dir=run_dir.logs,
            say=progress.say,
            launcher=launcher,
        )
        try:
            await trainer.start()
            async with (
                fail_with_ranks(trainer),
                open_learner(trainer, plan, run_dir, state, progress) as learner,
            ):
                yield learner
        finally:
            await trainer.aclose()


async def _prepare(
    objective: FinetuneObjective, learner: Learner, run_dir: RunDir, progress: Progress
) -> FinetuneObjective:
    """Record the rows and find the reference; a resumed run takes both as it recorded them at its beginning."""
    if learner.state.step:
        begun = await in_thread(lambda: BegunWith.read(run_dir), name="read data record")
        objective, note = await in_thread(lambda: begun.find_in(objective), name="find rows")
        if note is not None:
            progress.say(note)
        await objective.prepare(learner.trainer, begun.reference)
        return objective
    if isinstance(objective, Preference):
        progress.enter("scoring the pairs under the weights that the run begins with")
    reference = await objective.prepare(learner.trainer, [])
    await in_thread(
        lambda: BegunWith.of(objective, reference).write(run_dir), name="write data record"
    )
    return objective


@dataclass(slots=True)
class _Steps:
    """The steps of one run, from its state to its end."""

    plan: FinetunePlan
    learner: Learner
    progress: Progress
    _unreported: Mapping[str, float] | None = None
    """The metrics of a step that is taken, and that no file has yet."""
    _began: float = 0.0
    _num_skipped: int = 0

    async def run(self) -> str:
        """Learn until a limit is reached; returns why it ended."""
        state, config = self.learner.state, self.plan.config
        self._began = time.monotonic() - state.train_seconds
        self.learner.on_settled = self._report
        order = Order(len(self.plan.objective.rows), config.finetune.batch, seed=config.run.seed)
        self.progress.enter(f"learning: step {state.step + 1} of {config.run.steps}")
        while state.step < config.run.steps:
            minutes = config.run.max_minutes
            if minutes is not None and time.monotonic() - self._began >= 60 * minutes:
                return "max_minutes"
            rows = order.batch(state.step)
            metrics = await self.learner.learn(self._step(rows), f"step {state.step + 1}")
            self._report()
            self._check_learns(metrics)
            if config.eval.every and state.step % config.eval.every == 0:
                await self.measure(f"step-{state.step}")
            if self.learner.checkpoints.is_due(state.step):
                await self.learner.begin_save()
        return "steps"

    async def _step(self, rows: Sequence[int]) -> Mapping[str, float]:
        """Take one step. Weights and state go from v to v + 1 together. Returns the metrics."""
        began = time.monotonic()
        metrics = await self.plan.objective.learn(self.learner.trainer, rows)
        self.learner.state.step += 1
        self.learner.state.train_seconds = time.monotonic() - self._began
        self._unreported = {**metrics, "step_s": time.monotonic() - began}
        return metrics

    def _report(self) -> None:
        """Report the step that was taken, once, also if the run was cancelled meanwhile."""
        if self._unreported is not None:
            metrics, self._unreported = self._unreported, None
            values = self.progress.report_learning(self.learner.state, metrics)
            self.plan.plugins.notify.on_step(step=self.learner.state.step, metrics=values)

    def _check_learns(self, metrics: Mapping[str, float]) -> None:
        is_skipped = bool(metrics.get("num_skipped_updates")) and not metrics["num_updates"]
        self._num_skipped = self._num_skipped + 1 if is_skipped else 0
        if self._num_skipped >= MAX_SKIPPED_STEPS:
            raise DivergedError(
                f"the gradients of {self._num_skipped} steps in a row were not finite: lower "
                "trainer.learning_rate, or look for a row that breaks the model"
            )

    async def measure(self, name: str) -> Mapping[str, float]:
        """The held-out loss, as `NAME/loss`; nothing where no rows are held out."""
        values = await self.plan.objective.measure(self.learner.trainer)
        if values:
            self.progress.report_held_out(name, values, step=self.learner.state.step)
        return {f"{name}/{key}": value for key, value in values.items()}
