"""A whole training run: composed, warmed up, measured, trained, measured again, summed up.

Learning from whoever calls: a training run whose episodes are the sessions of callers.
"""

import asyncio
import logging
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from areal_sdk.agent import EpisodeContext
from areal_sdk.config import Config
from areal_sdk.errors import ArealError, ConfigError, StorageError
from areal_sdk.fsdp.directories import recover
from areal_sdk.loop.engines import check_engine
from areal_sdk.loop.held_out import Evaluator, Reports
from areal_sdk.loop.program import (
    Conversation,
    HeldOut,
    Program,
    load_demonstrations,
    load_held_out,
    load_tasks,
)
from areal_sdk.loop.progress import Progress
from areal_sdk.loop.services import (
    Rig,
    check_algorithm,
    check_learns,
    find_trained_model,
    open_rig,
    read_users,
    reward_specs,
    rollout_sampling,
)
from areal_sdk.loop.serving import announce
from areal_sdk.loop.state import Checkpoints, RunState, RunSummary
from areal_sdk.loop.steps import TrainingLoop, stalled_s, warm_up
from areal_sdk.loop.weights import BestWeights, whose_weights
from areal_sdk.plugins import Plugins
from areal_sdk.process.threads import in_thread
from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.callers import CallerEpisodes, CallerTasks
from areal_sdk.rollout.dispatcher import Dispatcher
from areal_sdk.rollout.staleness import StalenessGate
from areal_sdk.rollout.tasks import TaskSource, TaskStream
from areal_sdk.telemetry import Ledger, RunDir
from areal_sdk.types import Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that can be found wanting before anything heavy starts."""

    config: Config
    plugins: Plugins
    program: Program
    model_dir: Path
    train_tasks: Sequence[Task] | TaskStream
    eval_tasks: Mapping[str, HeldOut]
    demonstrations: Sequence[Conversation] = ()


def make_plan(config: Config, *, plugins: Plugins, program: Program) -> Plan:
    """Find model, tasks, rewards and demonstrations; ConfigError for what is missing or wrong.

    Blocks while a model is fetched: call it before the event loop starts.
    """
    eval_tasks = _eval_tasks(config, program, plugins)
    if config.eval.every and not eval_tasks:
        raise ConfigError(
            f"eval.every = {config.eval.every}, but no held-out tasks were given: "
            "give them (--eval-tasks FILE.jsonl), or remove eval.every"
        )
    check_names(config, plugins)
    return Plan(
        config,
        plugins,
        program,
        find_trained_model(config, plugins=plugins),
        load_tasks(config, program=program, plugins=plugins, say=logger.warning),
        eval_tasks,
        load_demonstrations(config.sft, program=program),
    )


def check_names(config: Config, plugins: Plugins) -> None:
    """ConfigError where no plugin has the engine, a reward, the trainer or the algorithm that was
    named, or where the algorithm could not learn."""
    check_engine(config, plugins)
    reward_specs(config, plugins)
    plugins.trainers.reference(config.trainer.name)
    check_algorithm(config, plugins)


def _eval_tasks(config: Config, program: Program, plugins: Plugins) -> Mapping[str, HeldOut]:
    """Held-out tasks by split; none where training tasks were given and no others."""
    if not (config.eval.before or config.eval.after or config.eval.every):
        return {}
    if config.eval_tasks is None and (config.tasks is not None or not program.has_held_out):
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
    plan: Plan,
    *,
    run_dir: RunDir,
    state: RunState,
    progress: Progress,
    checkpoint: Path | None = None,
) -> RunSummary:
    """Train from the start, or go on from `checkpoint`. `state` is where the run is, throughout."""
    config = plan.config
    await in_thread(lambda: recover(run_dir.checkpoints), name="recover checkpoints")
    progress.begin(state)
    if checkpoint is None and (whose := whose_weights(plan.model_dir)):
        progress.say(whose)
    async with (
        progress,
        open_rig(
            config,
            plan.program,
            model_dir=plan.model_dir,
            plugins=plan.plugins,
            run_dir=run_dir,
            train=True,
            say=progress.say,
        ) as rig,
    ):
        assert rig.trainer is not None
        check_learns(config, learns_alone=rig.trainer.info.learns_alone)
        ledger, tasks = Ledger(), _source(plan)
        if checkpoint is not None:
            progress.enter(f"going on from {checkpoint.name}: trainer and engine load it")
            state.update_from(await rig.trainer.load(checkpoint))
            if state.step >= config.run.steps:
                progress.say(
                    f"its {state.step} steps are made: what is left is to measure them (eval.after) "
                    "and to write the final weights"
                )
            ledger = Ledger.restore(state.ledger)
            tasks.restore(state.tasks)
            await rig.engine.update_weights(await rig.trainer.publish(state.version))
        elif config.sft.steps:
            await warm_up(rig, plan.demonstrations, progress=progress)
        best = await in_thread(lambda: BestWeights(run_dir.checkpoints), name="recall best")
        evaluator = Evaluator(rig, plan.eval_tasks, state, progress, best)
        before: Reports = {}
        if config.eval.before and checkpoint is None:
            before = await evaluator.measure_first()
        ended = await _train(rig, plan, state, ledger, tasks, evaluator, progress)
        after: Reports = {}
        if config.eval.after and (state.step or not before):  # else it measured these weights
            after = await evaluator.measure_last()
        await evaluator.measure_waiting()
        progress.enter("writing the final weights")
        await rig.trainer.export(run_dir.checkpoints / "final")
        summary = RunSummary(
            run_dir=str(run_dir.path),
            steps=state.step,
            version=state.version,
            train_seconds=state.train_seconds,
            ended=ended,
            before=before,
            after=after,
            ledger=ledger.snapshot(),
            best=None if best.best is None else best.best.to_json(),
        )
        progress.report_end(summary)
        return summary


async def _train(
    rig: Rig,
    plan: Plan,
    state: RunState,
    ledger: Ledger,
    tasks: TaskSource | CallerTasks,
    evaluator: Evaluator,
    progress: Progress,
) -> str:
    """Train and checkpoint; returns why it ended."""
    assert rig.trainer is not None
    config, rollout = plan.config, plan.config.rollout
    checkpoints = Checkpoints(
        rig.run_dir.checkpoints, config.run.checkpoint_every, config.run.keep_checkpoints
    )
    buffer = TrajectoryBuffer(
        gate=StalenessGate(rollout.batch, rollout.max_staleness, rollout.max_inflight),
        ledger=ledger,
        group_size=rollout.group_size,
        version=state.version,
        stale=rollout.stale,
        wait_s=rollout.wait_s,
        drop_incomplete=rollout.incomplete_groups == "drop",
        dynamic_sampling=rollout.dynamic_sampling,
        idle_groups=rig.trainer.info.idle_groups,
        in_order=config.run.deterministic,
        max_lost_in_a_row=sys.maxsize if config.serve.learn else None,  # callers owe us nothing
        on_consumed=tasks.consume,
    )
    async with _episodes(rig, tasks, buffer, progress) as source:
        progress.watch(buffer)
        rig.engine.on_outage = buffer.hold
        loop = TrainingLoop(
            rig,
            rig.trainer,
            state,
            buffer,
            tasks,
            source,
            checkpoints,
            evaluator,
            progress,
        )
        try:
            ended = await loop.run()
            # What was running is booked as cancelled by now.
            if not checkpoints.has_saved(state):
                await loop.save()
        except BaseException:  # whatever ends the run, what it learnt is kept
            await _keep_what_was_learnt(loop, grace_s=config.run.stop_grace_s)
            with suppress(StorageError):  # the error says more
                rig.run_dir.write_ledger(ledger.snapshot())
            raise
    rig.run_dir.write_ledger(ledger.snapshot())
    return ended


async def _keep_what_was_learnt(loop: TrainingLoop, *, grace_s: float) -> None:
    """Let the trainer finish what it is doing, and save it; a second Ctrl-C cuts this off."""
    say, what = loop.progress.say, f"step {loop.state.step}"
    until = f"(up to {grace_s:g} s: run.stop_grace_s; Ctrl-C again: at once)"
    try:
        async with asyncio.timeout(grace_s):
            if (at_work := loop.at_work) is not None:
                what = at_work
                say(f"stopping: waits for {what} {until}")
            if await loop.settle() and loop.has_unsaved:
                what = f"the checkpoint of step {loop.state.step}"
                say(f"stopping: writes {what} {until}")
                await loop.save()
    except TimeoutError:
        say(f"warning: {what} was given up: it took longer than run.stop_grace_s = {grace_s:g}")
    except ArealError as exc:
        say(f"warning: step {loop.state.step} was not saved: {exc}")


@asynccontextmanager
async def _episodes(
    rig: Rig, tasks: TaskSource | CallerTasks, buffer: TrajectoryBuffer, progress: Progress
) -> AsyncIterator[Dispatcher | CallerEpisodes]:
    """Who fills the buffer: the program plays tasks, or callers do as they like."""
    config, rollout = rig.config, rig.config.rollout
    if isinstance(tasks, CallerTasks):
        announce(config, rig.gateway, say=progress.say)
        yield CallerEpisodes(
            rig.gateway.external,
            tasks=tasks,
            ledger=buffer.ledger,
            buffer=buffer,
            truncated=rollout.truncated,
            rewards=rig.rewards,
            on_episode=progress.finished,
            on_measured=progress.measured,
        )
        return
    sampling = rollout_sampling(rollout)
    async with rig.runner(split="train", sampling=sampling) as runner:
        yield Dispatcher(
            runner=runner,
            tasks=tasks,
            ledger=buffer.ledger,
            buffer=buffer,
            truncated=rollout.truncated,
            on_episode=progress.finished,
            stalled_s=stalled_s(config),
        )


def _source(plan: Plan) -> TaskSource | CallerTasks:
    if plan.config.serve.learn:
        return CallerTasks()
    return TaskSource(
        plan.train_tasks,
        seed=plan.config.run.seed,
        shuffle=plan.config.rollout.shuffle,
        epochs=plan.config.rollout.epochs,
    )


def make_live_plan(config: Config, *, plugins: Plugins) -> Plan:
    """What there is to check before anything heavy starts: callers bring agents and tasks."""
    for name in ("agent", "env", "tasks", "eval_tasks"):
        if getattr(config, name):
            raise ConfigError(f"serve.learn learns from whoever calls: leave {name} out")
    read_users(config)
    check_names(config, plugins)
    return Plan(
        config,
        plugins,
        Program("serve", _nobody),
        find_trained_model(config, plugins=plugins),
        train_tasks=(),
        eval_tasks={},
    )


async def _nobody(task: Task, context: EpisodeContext) -> NoReturn:
    raise AssertionError("callers play, not an agent of ours")
