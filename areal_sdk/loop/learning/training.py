"""A whole training run: started, warmed up, measured, trained, measured again, summed up.

`make_plan` finds everything that a run needs, and refuses what is missing or wrong, before anything
heavy starts. `make_live_plan` does so for a run that learns from the callers of its gateway. `sources`
begins the episodes of both; the rest of `run_training` is the same.
"""

import logging
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from areal_sdk.agent import EpisodeContext
from areal_sdk.config import Config
from areal_sdk.errors import ConfigError, StorageError
from areal_sdk.loop.evaluation.best import BestWeights
from areal_sdk.loop.evaluation.earlier import recorded_before
from areal_sdk.loop.evaluation.evaluator import Evaluator, Reports
from areal_sdk.loop.learning.guard import CollapseGuard
from areal_sdk.loop.learning.learner import Learner, open_learner, write_final
from areal_sdk.loop.learning.sources import follow_callers, play_tasks
from areal_sdk.loop.learning.state import RunSummary
from areal_sdk.loop.learning.steps import TrainingLoop
from areal_sdk.loop.learning.warm_up import warm_up
from areal_sdk.loop.plan.demonstrations import load_demonstrations
from areal_sdk.loop.plan.mixture import without_tasks
from areal_sdk.loop.plan.models import (
    FoundModel,
    at_origin,
    find_trained_model,
    whose_weights,
)
from areal_sdk.loop.plan.overlap import warn_of_overlap
from areal_sdk.loop.plan.parts import (
    ChosenAlgorithm,
    check_engine,
    check_learns,
    choose_algorithm,
    dynamic_sampling_warning,
    has_own_trainer,
    make_observers,
    reward_specs,
)
from areal_sdk.loop.plan.program import Program
from areal_sdk.loop.plan.rows import Conversation
from areal_sdk.loop.plan.tasks import (
    HeldOut,
    load_held_out,
    load_tasks,
    mixture_has_held_out,
    own_held_out,
)
from areal_sdk.loop.progress import Progress
from areal_sdk.loop.runs import Start
from areal_sdk.loop.services.gateway import check_serves
from areal_sdk.loop.services.opening import Services, open_services
from areal_sdk.plugins import Plugins
from areal_sdk.process.threads import in_thread
from areal_sdk.rollout.tasks import TaskStream
from areal_sdk.telemetry.directories import recover
from areal_sdk.types import Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Everything that a training run needs, found and checked."""

    config: Config
    plugins: Plugins
    program: Program
    model: FoundModel
    algorithm: ChosenAlgorithm
    train_tasks: Sequence[Task] | TaskStream | None = None
    """The tasks that the agent plays; None if callers of the gateway play."""
    eval_tasks: Mapping[str, HeldOut] = field(default_factory=dict)
    demonstrations: Sequence[Conversation] = ()
    warnings: tuple[str, ...] = ()
    """Reasons to doubt the run's measurements. Told before the run, and again in its summary."""

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def splits(self) -> Sequence[str]:
        return tuple(self.eval_tasks)

    @property
    def is_steady(self) -> bool:
        """Whether the tasks stay equally hard: they come from a list or a mixture, and no curriculum chooses them."""
        is_mixed = bool(self.config.mixture) and self.config.curriculum.target is None
        return is_mixed or not (
            self.train_tasks is None or isinstance(self.train_tasks, TaskStream)
        )

    def run(self, start: Start) -> Coroutine[Any, Any, RunSummary]:
        return run_training(self, start)


def make_plan(config: Config, *, plugins: Plugins, program: Program) -> RunPlan:
    """Find model, tasks, rewards and demonstrations; ConfigError for what is missing or wrong.

    Blocks while a model is fetched: call it before the event loop starts.
    """
    eval_tasks = held_out_tasks(config, program, plugins)
    if config.eval.every and not eval_tasks:
        load_tasks(
            config, program=program, plugins=plugins, say=logger.warning
        )  # its mistakes first
        raise ConfigError(
            f"eval.every = {config.eval.every}, but no held-out tasks were given: "
            "give them (--eval-tasks FILE.jsonl), or remove eval.every"
        )
    algorithm = check_names(config, plugins)
    model = find_trained_model(config, plugins=plugins, preset=algorithm.preset)
    train_tasks = load_tasks(config, program=program, plugins=plugins, say=logger.warning)
    warnings = warn_of_overlap(train_tasks, eval_tasks)
    for warning in (*warnings, *_unmeasured(config, program, eval_tasks)):
        logger.warning("%s", warning)
    return RunPlan(
        config,
        plugins,
        program,
        model,
        algorithm,
        train_tasks,
        eval_tasks,
        load_demonstrations(config.sft, program=program),
        warnings,
    )


def _unmeasured(
    config: Config, program: Program, eval_tasks: Mapping[str, HeldOut]
) -> Sequence[str]:
    """A line that names the sources of a mixture without held-out tasks, if other sources have some."""
    is_given = config.eval_tasks is not None or any(split in program.given for split in eval_tasks)
    if is_given or not config.mixture or not eval_tasks:
        return ()
    measured = [task for given in eval_tasks.values() for task in given.tasks]
    labels = without_tasks([part.label for part in config.mixture], measured)
    if not labels:
        return ()
    return (
        f"no held-out tasks of {', '.join(labels)}: no evaluation measures this part of the mixture "
        "(give it eval_tasks, or raise eval.tasks if its tasks were not drawn)",
    )


def make_live_plan(config: Config, *, plugins: Plugins) -> RunPlan:
    """The plan of `serve --learn`: callers bring agents and tasks."""
    for name in ("agent", "env", "command", "tasks", "eval_tasks", "mixture"):
        if getattr(config, name):
            raise ConfigError(f"serve.learn learns from callers: leave {name} out")
    check_serves(config)
    algorithm = check_names(config, plugins)
    model = find_trained_model(config, plugins=plugins, preset=algorithm.preset)
    return RunPlan(config, plugins, Program("serve", _no_agent), model, algorithm)


def check_names(config: Config, plugins: Plugins) -> ChosenAlgorithm:
    """The algorithm that the settings name. ConfigError if it could not learn, or if no plugin has the named engine,
    reward, observer, trainer, launcher or algorithm."""
    check_engine(config, plugins)
    make_observers(config, plugins)
    reward_specs(config, plugins)
    plugins.trainers.reference(config.trainer.name)
    plugins.launchers.reference(config.cluster.launcher)
    return choose_algorithm(config, plugins)


def held_out_tasks(config: Config, program: Program, plugins: Plugins) -> Mapping[str, HeldOut]:
    """Held-out tasks by split; none if only training tasks were given, and their source has no others."""
    if not (config.eval.before or config.eval.after or config.eval.every):
        return {}
    own = own_held_out(config.tasks) if config.eval_tasks is None else None
    if config.eval_tasks is None and own is None:
        has_given = any(split in program.given for split in config.eval.splits)
        has_own = config.tasks is None and program.has_held_out
        if not (has_given or (mixture_has_held_out(config) if config.mixture else has_own)):
            return {}
    may_lack = own is not None or _asks_for_none(config)
    found = {}
    for split in config.eval.splits:
        is_given = split in program.given
        found[split] = load_held_out(
            config,
            split,
            source=config.eval_tasks or (None if is_given else own),
            program=program,
            plugins=plugins,
            say=logger.warning,
            may_lack=may_lack and not is_given,
        )
    return {split: given for split, given in found.items() if given.tasks}


def _asks_for_none(config: Config) -> bool:
    """Whether the run has a mixture, and neither the run nor a part of the mixture names held-out tasks."""
    asked = (config.eval_tasks, *(part.eval_tasks for part in config.mixture))
    return bool(config.mixture) and not any(asked)


async def run_training(plan: RunPlan, start: Start) -> RunSummary:
    """Train from the first step, or go on from the checkpoint of `start`."""
    run_dir, state, progress = start.run_dir, start.state, start.progress
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
    if start.checkpoint is None and (whose := whose_weights(plan.model.directory)):
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
            most_ranks=start.most_ranks,
            say=progress.say,
        ) as services,
        progress.following(services.parts),
        open_learner(
            services.trainer,
            plan,
            run_dir,
            state,
            progress,
            failure=lambda: services.engine.failure,
        ) as learner,
    ):
        await _begin_weights(services, learner, plan, progress, start.checkpoint)
        best = await in_thread(lambda: BestWeights(run_dir.checkpoints), name="recall best")
        evaluator = Evaluator(services, plan.eval_tasks, state, progress, best)
        evaluator.tell_temperature()
        evaluator.tell_of_other_measure()
        before: Reports = {}
        if config.eval.before and not state.step:
            before = await evaluator.measure_first()
        elif config.eval.before:
            before = await in_thread(
                lambda: recorded_before(run_dir, plan.splits), name="read what was measured before"
            )
        ended, ledger, better = await _train(services, plan, learner, evaluator, progress)
        after: Reports = {}
        if config.eval.after and (state.step or not before):  # else `before` measured these weights
            after = await evaluator.measure_last()
        await evaluator.measure_waiting()
        await write_final(learner, run_dir, progress)
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
            better=better,
            rollbacks=state.guard.get("num_rollbacks", 0),
        )
        progress.report_end(summary)
        return summary


async def _begin_weights(
    services: Services,
    learner: Learner,
    plan: RunPlan,
    progress: Progress,
    checkpoint: Path | None,
) -> None:
    """Bring trainer and engine to the weights with which the run begins or continues."""
    run, num_warmup = plan.config.run, plan.config.sft.steps
    state, trainer = learner.state, learner.trainer
    check_learns(plan.config, learns_alone=trainer.info.learns_alone)
    check_policies(services.engine.info.policies, trainer.info.policies)
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


def check_policies(served: Mapping[str, bool], trained: Sequence[str]) -> None:
    """Raise ConfigError unless the trainer tells apart what the engine samples: no policy may learn another's tokens.

    >>> check_policies({"planner": True, "rival": False}, ["planner"])
    """
    learns = [name for name, is_trained in served.items() if is_trained]
    if learns != [*trained]:
        raise ConfigError(
            f"the engine samples the policies {learns}, and the trainer trains {[*trained]}: take both from "
            "the tables [policy.NAME]"
        )


async def _train(
    services: Services,
    plan: RunPlan,
    learner: Learner,
    evaluator: Evaluator,
    progress: Progress,
) -> tuple[str, Mapping[str, Any], int | None]:
    """Take the steps and save the last one. Returns the reason for the end, the fate of every episode, and, if no
    evaluation chose weights, the step of kept weights that were better than the last ones."""
    open_source = follow_callers
    if plan.train_tasks is not None:
        open_source = partial(play_tasks, plan.train_tasks)
    async with open_source(services, learner.state, progress) as source:
        if learner.state.tasks:
            source.restore(learner.state.tasks)
        progress.watch(source.buffer)
        services.engine.observe_outages(source.buffer.hold)
        ledger, write = source.buffer.ledger, services.run_dir.write_ledger
        try:
            guard = CollapseGuard.of(plan.config, learner, progress, is_steady=plan.is_steady)
            loop = TrainingLoop(services, learner, source, evaluator, progress, guard)
            ended = await loop.run()
        except BaseException:
            with suppress(StorageError):  # the error that ends the run says more
                write(ledger.snapshot())
            raise
        await learner.save()
    write(ledger.snapshot())
    if evaluator.best.best is not None:
        return ended, ledger.snapshot(), None
    guard.tell_of_better()
    return ended, ledger.snapshot(), guard.better


async def _no_agent(task: Task, context: EpisodeContext) -> NoReturn:
    raise AssertionError("in a live run callers play, not an agent")
