"""A whole training run: started, warmed up, measured, trained, measured again, summed up.

`make_plan` finds everything that a run needs, and refuses what is missing or wrong, before anything
heavy starts. `make_live_plan` does so for a run that learns from the callers of its gateway. The plans
differ in how the episodes of the run begin; `run_training` is the same for both.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn, Protocol

from areal_sdk.agent import EpisodeContext
from areal_sdk.config import Config
from areal_sdk.errors import ArealError, ConfigError, StorageError
from areal_sdk.loop.best import BestWeights
from areal_sdk.loop.evaluator import Evaluator, Reports
from areal_sdk.loop.plan.demonstrations import load_demonstrations
from areal_sdk.loop.plan.models import (
    FoundModel,
    at_origin,
    find_trained_model,
    keep_description,
    whose_weights,
)
from areal_sdk.loop.plan.parts import (
    ChosenAlgorithm,
    check_engine,
    check_learns,
    choose_algorithm,
    dynamic_sampling_warning,
    has_own_trainer,
    reward_specs,
)
from areal_sdk.loop.plan.program import Program
from areal_sdk.loop.plan.rows import Conversation
from areal_sdk.loop.plan.tasks import (
    HeldOut,
    load_held_out,
    load_tasks,
    mixture_has_held_out,
    warn_of_overlap,
)
from areal_sdk.loop.progress import Progress
from areal_sdk.loop.services import Services, open_services, rollout_sampling
from areal_sdk.loop.serving import announce, read_users
from areal_sdk.loop.state import Checkpoints, RunState, RunSummary
from areal_sdk.loop.steps import Learner, TrainingLoop, stalled_s, warm_up
from areal_sdk.plugins import Plugins
from areal_sdk.process.threads import in_thread
from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.callers import CallerEpisodes, CallerTasks
from areal_sdk.rollout.dispatcher import Dispatcher
from areal_sdk.rollout.source import EpisodeSource
from areal_sdk.rollout.staleness import StalenessGate
from areal_sdk.rollout.tasks import TaskSource, TaskStream
from areal_sdk.telemetry import Ledger, RunDir
from areal_sdk.telemetry.directories import recover
from areal_sdk.trainer import Trainer
from areal_sdk.types import Task

logger = logging.getLogger(__name__)


class TrainsModel(Protocol):
    """The plan of a run that begins with the weights of `model`."""

    @property
    def config(self) -> Config: ...

    @property
    def model(self) -> FoundModel: ...


OpenEpisodes = Callable[
    ["RunPlan", Services, RunState, Progress], AbstractAsyncContextManager[EpisodeSource]
]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that a training run needs, found and checked."""

    config: Config
    plugins: Plugins
    program: Program
    model: FoundModel
    algorithm: ChosenAlgorithm
    open_episodes: OpenEpisodes
    """Makes the source of the run's episodes."""
    train_tasks: Sequence[Task] | TaskStream = ()
    eval_tasks: Mapping[str, HeldOut] = field(default_factory=dict)
    demonstrations: Sequence[Conversation] = ()
    warnings: tuple[str, ...] = ()
    """What makes the run's measurements doubtful. Told before the run, and again in its summary."""

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def splits(self) -> Sequence[str]:
        return tuple(self.eval_tasks)

    def run(
        self, *, run_dir: RunDir, state: RunState, progress: Progress, checkpoint: Path | None
    ) -> Coroutine[Any, Any, RunSummary]:
        return run_training(
            self, run_dir=run_dir, state=state, progress=progress, checkpoint=checkpoint
        )


def make_plan(config: Config, *, plugins: Plugins, program: Program) -> RunPlan:
    """Find model, tasks, rewards and demonstrations; ConfigError for what is missing or wrong.

    Blocks while a model is fetched: call it before the event loop starts.
    """
    eval_tasks = held_out_tasks(config, program, plugins)
    if config.eval.every and not eval_tasks:
        raise ConfigError(
            f"eval.every = {config.eval.every}, but no held-out tasks were given: "
            "give them (--eval-tasks FILE.jsonl), or remove eval.every"
        )
    algorithm = check_names(config, plugins)
    model = find_trained_model(config, plugins=plugins, preset=algorithm.preset)
    train_tasks = load_tasks(config, program=program, plugins=plugins, say=logger.warning)
    labels = [part.label for part in config.mixture]
    warnings = warn_of_overlap(train_tasks, eval_tasks, labels=labels)
    for warning in warnings:
        logger.warning("%s", warning)
    return RunPlan(
        config,
        plugins,
        program,
        model,
        algorithm,
        play_tasks,
        train_tasks,
        eval_tasks,
        load_demonstrations(config.sft, program=program),
        warnings,
    )


def make_live_plan(config: Config, *, plugins: Plugins) -> RunPlan:
    """The plan of `serve --learn`: callers bring agents and tasks."""
    for name in ("agent", "env", "command", "tasks", "eval_tasks", "mixture"):
        if getattr(config, name):
            raise ConfigError(f"serve.learn learns from callers: leave {name} out")
    read_users(config)
    algorithm = check_names(config, plugins)
    model = find_trained_model(config, plugins=plugins, preset=algorithm.preset)
    return RunPlan(config, plugins, Program("serve", _no_agent), model, algorithm, follow_callers)


def check_names(config: Config, plugins: Plugins) -> ChosenAlgorithm:
    """The algorithm that was named. ConfigError if it could not learn, or if no plugin has the engine,
    a reward, the trainer or the algorithm that was named."""
    check_engine(config, plugins)
    reward_specs(config, plugins)
    plugins.trainers.reference(config.trainer.name)
    return choose_algorithm(config, plugins)


def held_out_tasks(config: Config, program: Program, plugins: Plugins) -> Mapping[str, HeldOut]:
    """Held-out tasks by split; none where training tasks were given and no others."""
    if not (config.eval.before or config.eval.after or config.eval.every):
        return {}
    if config.eval_tasks is None:
        has_given = any(split in program.given for split in config.eval.splits)
        has_own = config.tasks is None and program.has_held_out
        if not (has_given or (mixture_has_held_out(config) if config.mixture else has_own)):
            return {}
    return {
        split: load_held_out(
            config,
            split,
            source=config.eval_tasks,
            program=program,
            plugins=plugins,
            say=logger.warning,
        )
        for split in config.eval.splits
    }


async def run_training(
    plan: RunPlan,
    *,
    run_dir: RunDir,
    state: RunState,
    progress: Progress,
    checkpoint: Path | None = None,
) -> RunSummary:
    """Train from the start, or go on from `checkpoint`. `state` is where the run is, throughout."""
    config = plan.config
    model = await in_thread(
        lambda: at_origin(
            plan.model, run_dir, config, reads_reference=plan.algorithm.reads_reference
        ),
        name="find origin",
    )
    plan = replace(plan, model=model)
    plan.program.keep_output(run_dir.logs)
    await in_thread(lambda: recover(run_dir.checkpoints), name="recover checkpoints")
    progress.begin(state)
    if checkpoint is None and (whose := whose_weights(plan.model.directory)):
        progress.say(whose)
    async with (
        progress,
        open_services(
            config,
            plan.program,
            model=plan.model,
            plugins=plan.plugins,
            run_dir=run_dir,
            learns=plan.algorithm.preset,
            say=progress.say,
        ) as services,
        open_learner(services.trainer, plan, run_dir, state, progress) as learner,
    ):
        await _begin_weights(services, learner, plan, progress, checkpoint)
        best = await in_thread(lambda: BestWeights(run_dir.checkpoints), name="recall best")
        evaluator = Evaluator(services, plan.eval_tasks, state, progress, best)
        evaluator.tell_of_other_measure()
        before: Reports = {}
        if config.eval.before and not state.step:
            before = await evaluator.measure_first()
        ended, ledger = await _train(services, plan, learner, evaluator, progress)
        after: Reports = {}
        if config.eval.after and (state.step or not before):  # else `before` measured these weights
            after = await evaluator.measure_last()
        await evaluator.measure_waiting()
        progress.enter("writing the final weights")
        await learner.trainer.export(run_dir.checkpoints / "final")
        summary = RunSummary(
            run_dir=str(run_dir.path),
            steps=state.step,
            version=state.version,
            train_seconds=state.train_seconds,
            ended=ended,
            before=before,
            after=after,
            ledger=ledger,
            best=None if best.best is None else best.best.to_json(),
            warnings=plan.warnings,
        )
        progress.report_end(summary)
        return summary


@asynccontextmanager
async def open_learner(
    trainer: Trainer | None,
    plan: TrainsModel,
    run_dir: RunDir,
    state: RunState,
    progress: Progress,
) -> AsyncIterator[Learner]:
    """The learner of a run. Whatever ends the run, what it has learnt is saved."""
    assert trainer is not None
    await in_thread(
        lambda: keep_description(plan.model.directory, run_dir), name="keep description"
    )
    run = plan.config.run
    checkpoints = Checkpoints(run_dir.checkpoints, run.checkpoint_every, run.keep_checkpoints)
    learner = Learner(trainer, state, checkpoints)
    try:
        yield learner
    except BaseException:
        await _keep_what_was_learnt(learner, grace_s=run.stop_grace_s, say=progress.say)
        raise


async def _keep_what_was_learnt(
    learner: Learner, *, grace_s: float, say: Callable[[str], None]
) -> None:
    """Let the trainer finish its step, and save the result. A second Ctrl-C cuts this off."""
    what = learner.state.reached
    until = f"(up to {grace_s:g} s: run.stop_grace_s; Ctrl-C again: at once)"
    try:
        async with asyncio.timeout(grace_s):
            if (at_work := learner.at_work) is not None:
                what = at_work
                say(f"stopping: waits for {what} {until}")
            if await learner.settle() and learner.has_learnt and not learner.is_saved:
                what = f"the checkpoint of {learner.state.reached}"
                say(f"stopping: writes {what} {until}")
                await learner.save()
    except TimeoutError:
        say(f"warning: {what} was given up: it took longer than run.stop_grace_s = {grace_s:g}")
    except ArealError as exc:
        say(f"warning: {learner.state.reached} was not saved: {exc}")


async def _begin_weights(
    services: Services,
    learner: Learner,
    plan: RunPlan,
    progress: Progress,
    checkpoint: Path | None,
) -> None:
    """Bring trainer and engine to the weights that the run begins or goes on with."""
    run, num_warmup = plan.config.run, plan.config.sft.steps
    state, trainer = learner.state, learner.trainer
    check_learns(plan.config, learns_alone=trainer.info.learns_alone)
    warning = dynamic_sampling_warning(plan.config, trainer.info.idle_groups)
    if warning and not has_own_trainer(plan.config):  # that one was asked before it started
        progress.say(f"warning: {warning}")
    if checkpoint is not None:
        progress.enter(f"going on from {checkpoint.name}: trainer and engine load it")
        state.warmup_steps = num_warmup  # a checkpoint that does not say was written after it
        await learner.load(checkpoint)
        if state.step >= run.steps:
            progress.say(
                f"its {state.step} steps are made: what is left is to measure them (eval.after) "
                "and to write the final weights"
            )
    if not state.step and state.warmup_steps < num_warmup:
        await warm_up(services, learner, plan.demonstrations, progress=progress)
    elif checkpoint is not None:
        await services.engine.update_weights(await trainer.publish(state.version))


async def _train(
    services: Services,
    plan: RunPlan,
    learner: Learner,
    evaluator: Evaluator,
    progress: Progress,
) -> tuple[str, Mapping[str, Any]]:
    """Take the steps and save the last one; returns why they ended, and where every episode went."""
    async with plan.open_episodes(plan, services, learner.state, progress) as source:
        if learner.state.tasks:
            source.restore(learner.state.tasks)
        progress.watch(source.buffer)
        services.engine.on_outage = source.buffer.hold
        ledger, write = source.buffer.ledger, services.run_dir.write_ledger
        try:
            ended = await TrainingLoop(services, learner, source, evaluator, progress).run()
        except BaseException:
            with suppress(StorageError):  # the error that ends the run says more
                write(ledger.snapshot())
            raise
        await learner.save()
    write(ledger.snapshot())
    return ended, ledger.snapshot()


@asynccontextmanager
async def play_tasks(
    plan: RunPlan, services: Services, state: RunState, progress: Progress
) -> AsyncIterator[EpisodeSource]:
    """The agent plays the training tasks."""
    config, rollout = plan.config, plan.config.rollout
    tasks = TaskSource(
        plan.train_tasks, seed=config.run.seed, shuffle=rollout.shuffle, epochs=rollout.epochs
    )
    async with services.runner(split="train", sampling=rollout_sampling(rollout)) as runner:
        yield Dispatcher(
            make_buffer(services, state),
            runner=runner,
            tasks=tasks,
            truncated=rollout.truncated,
            on_episode=progress.finished,
            stalled_s=stalled_s(config),
        )


@asynccontextmanager
async def follow_callers(
    plan: RunPlan, services: Services, state: RunState, progress: Progress
) -> AsyncIterator[EpisodeSource]:
    """Callers of the gateway play as they like."""
    announce(plan.config, services.gateway, say=progress.say)
    yield CallerEpisodes(
        # However many of its episodes fail: callers need not give anything to train.
        make_buffer(services, state, max_lost_in_a_row=sys.maxsize),
        sessions=services.gateway.external,
        tasks=CallerTasks(),
        truncated=plan.config.rollout.truncated,
        rewards=services.rewards,
        on_episode=progress.finished,
        on_measured=progress.measured,
    )


def make_buffer(
    services: Services, state: RunState, *, max_lost_in_a_row: int | None = None
) -> TrajectoryBuffer:
    """The buffer of a run that begins or goes on at `state`."""
    assert services.trainer is not None
    config, rollout = services.config, services.config.rollout
    return TrajectoryBuffer(
        gate=StalenessGate(rollout.batch, rollout.max_staleness, rollout.max_inflight),
        ledger=Ledger.restore(state.ledger) if state.ledger else Ledger(),
        group_size=rollout.group_size,
        version=state.version,
        stale=rollout.stale,
        wait_s=rollout.wait_s,
        drop_incomplete=rollout.incomplete_groups == "drop",
        dynamic_sampling=rollout.dynamic_sampling,
        idle_groups=services.trainer.info.idle_groups,
        in_order=config.run.deterministic,
        max_lost_in_a_row=max_lost_in_a_row,
    )


async def _no_agent(task: Task, context: EpisodeContext) -> NoReturn:
    raise AssertionError("in a live run callers play, not an agent")
