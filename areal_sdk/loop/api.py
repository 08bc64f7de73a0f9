"""The commands as functions: configuration in, summary out.

    train -> make_plan -> run_training: open_services -> TrainingLoop.run: its steps

Each function runs an event loop of its own. `train_async` and `evaluate_async` use the one that runs.
"""

import logging
import shutil
import sys
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from areal_sdk.config import Config, idle_settings, load_config, parse_config, with_absolute_paths
from areal_sdk.config.keys import join_key, leaves
from areal_sdk.errors import ArealError, ConfigError
from areal_sdk.gateway.upstream.gateway import check_address
from areal_sdk.loop.evaluator import RemoteEndpoint, run_evaluation
from areal_sdk.loop.models import engine_name, engine_tables, find_served_model
from areal_sdk.loop.program import load_program
from areal_sdk.loop.progress import EvalView, Progress
from areal_sdk.loop.serving import run_server, run_upstream
from areal_sdk.loop.shutdown import StoppedAtOnce, refuse_inside_a_loop, run_to_the_end
from areal_sdk.loop.state import (
    Change,
    RunState,
    RunSummary,
    changed_settings,
    finished_summary,
    latest_checkpoint,
    step_of,
    why_finished,
)
from areal_sdk.loop.training import RunPlan, make_live_plan, make_plan, run_training
from areal_sdk.models import BUILT_IN
from areal_sdk.plugins import Plugins, load_plugins
from areal_sdk.process.threads import in_thread
from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.run_dir import BEST, read_measured
from areal_sdk.telemetry.terminal import TerminalView
from areal_sdk.telemetry.waits import waits_on_signal
from areal_sdk.telemetry.watchdog import Watchdog
from areal_sdk.types import Task

logger = logging.getLogger(__name__)


def train(
    agent: object,
    *,
    model: str | None = None,
    tasks: Iterable[Task] | None = None,
    eval_tasks: Iterable[Task] | None = None,
    resume: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> RunSummary:
    """Train `agent` (a class, an instance, a function, or what `areal-sdk train` takes).

    `settings` are those of the TOML file, as sections: `rollout={"batch": 64}`; the model is
    `smollm2` unless another is given. `resume` is the directory of a run to go on with, with the
    same agent and tasks; settings may then raise its limits.
    """
    refuse_inside_a_loop()  # before anything is loaded or written
    return _train(
        _training(
            agent,
            settings,
            model=model,
            tasks=_given_tasks(train=tasks, eval=eval_tasks),
            resume=resume,
            quiet=quiet,
        )
    )


async def train_async(
    agent: object,
    *,
    model: str | None = None,
    tasks: Iterable[Task] | None = None,
    eval_tasks: Iterable[Task] | None = None,
    resume: str | Path | None = None,
    quiet: bool = False,
    **settings: Any,
) -> RunSummary:
    """`areal_sdk.train` in the event loop that runs already, as in a notebook.

    A cancelled run saves what it has learnt, as Ctrl-C does, before `CancelledError` comes back.
    """
    given = _given_tasks(train=tasks, eval=eval_tasks)
    training = await in_thread(  # finding a model may take long
        lambda: _training(agent, settings, model=model, tasks=given, resume=resume, quiet=quiet),
        name="plan of the run",
    )
    if isinstance(training, RunSummary):
        return training
    with _begun(training) as run:
        async with Watchdog():
            run.summary = await run.main()
    return run.whole_summary


def evaluate(
    agent: object,
    *,
    model: str = "smollm2",
    tasks: Iterable[Task] | None = None,
    split: str = "eval",
    base_url: str | None = None,
    api_key: str | None = None,
    quiet: bool = False,
    **settings: Any,
) -> EvalReport:
    """Measure `agent` on `tasks` (or its own `tasks(split)`).

    With `base_url` on that OpenAI-compatible endpoint, else on a local model. How far it is shows on
    stderr, unless `quiet`.
    """
    refuse_inside_a_loop()
    return _evaluate(
        _evaluation(
            _settings_of(agent, {"model": model, **settings}),
            split,
            endpoint=_endpoint(base_url, api_key),
            agent=agent,
            tasks=_given_tasks(**{split: tasks}),
            quiet=quiet,
        )
    )


async def evaluate_async(
    agent: object,
    *,
    model: str = "smollm2",
    tasks: Iterable[Task] | None = None,
    split: str = "eval",
    base_url: str | None = None,
    api_key: str | None = None,
    quiet: bool = False,
    **settings: Any,
) -> EvalReport:
    """`areal_sdk.evaluate` in the event loop that runs already, as in a notebook."""
    evaluation = await in_thread(
        lambda: _evaluation(
            _settings_of(agent, {"model": model, **settings}),
            split,
            endpoint=_endpoint(base_url, api_key),
            agent=agent,
            tasks=_given_tasks(**{split: tasks}),
            quiet=quiet,
        ),
        name="plan of the evaluation",
    )
    try:
        async with Watchdog():
            return await evaluation
    except ExceptionGroup as group:
        raise _cause(group) from group


def train_config(config: Config, *, quiet: bool = False) -> RunSummary:
    return _train(Training(_plan(config), quiet=quiet))


def resume_training(
    path: Path,
    *,
    settings: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> RunSummary:
    """Go on with the run in `path` from its latest checkpoint; `settings` may raise its limits."""
    run_dir = RunDir.open(path)
    return _train(_resumed(run_dir, overrides or {}, settings=settings, quiet=quiet))


def evaluate_config(
    config: Config,
    *,
    split: str,
    base_url: str | None = None,
    api_key: str | None = None,
    quiet: bool = False,
) -> EvalReport:
    endpoint = _endpoint(base_url, api_key)
    return _evaluate(_evaluation(config, split, endpoint=endpoint, quiet=quiet))


def check(config: Config) -> None:
    """`--dry-run`: everything that can be wrong before anything heavy starts."""
    _plan(config)


def serve_config(config: Config, *, say: Callable[[str], None]) -> RunSummary | None:
    """Serve until interrupted; the summary of what was learnt, where it learns."""
    if config.serve.learn:
        return _train(Training(_plan(config)))
    run_dir = model_dir = None
    plugins = _load_plugins(config)
    if config.serve.upstream is not None:
        check_address(config.serve.upstream)  # before it is written anywhere
    else:
        model_dir = find_served_model(config, plugins=plugins)
    if config.serve.keeps_sessions:
        run_dir = RunDir.create(config.run.dir, config.run.name, stem="serve")
        _write_config(run_dir, config, plugins)
        say(f"run directory: {run_dir.path}")
    server = (
        run_upstream(config, run_dir=run_dir, say=say)
        if model_dir is None
        else run_server(config, model_dir=model_dir, plugins=plugins, run_dir=run_dir, say=say)
    )
    with _removed_if_refused(run_dir):
        try:
            run_to_the_end(server)
        except KeyboardInterrupt:
            pass  # how servers end
        except ExceptionGroup as group:
            raise _cause(group) from None
    return None


def _plan(
    config: Config,
    *,
    agent: object | None = None,
    tasks: Mapping[str, Iterable[Task]] | None = None,
) -> RunPlan:
    for line in idle_settings(config, engine=engine_name(config.engine)):
        logger.warning("%s", line)
    plugins = _load_plugins(config)
    if config.serve.learn:
        return make_live_plan(config, plugins=plugins)
    program = load_program(config, plugins=plugins, agent=agent)
    return make_plan(config, plugins=plugins, program=program.with_tasks(tasks or {}))


@dataclass(frozen=True, slots=True)
class Training:
    """A run that can begin, or go on: all that it needs was found."""

    plan: RunPlan
    run_dir: RunDir | None = None
    """Of a run that goes on; a new run gets a new one."""
    checkpoint: Path | None = None
    call: Mapping[str, str] = field(default_factory=dict)
    """The arguments of a new run that were objects: a resumed run needs them again."""
    changes: Sequence[Change] = ()
    """The settings that have another value in a run that goes on."""
    quiet: bool = False


def _training(
    agent: object,
    settings: Mapping[str, Any],
    *,
    model: str | None,
    tasks: Mapping[str, Iterable[Task]],
    resume: str | Path | None,
    quiet: bool,
) -> Training | RunSummary:
    """The run that a call of `train` asks for; a summary where nothing is left to do."""
    item = None if isinstance(agent, str) else agent
    values = {**settings, **({"agent": agent} if item is None else {})}
    name = getattr(agent, "__name__", repr(agent) if item is None else type(agent).__name__)
    arguments = {"train": "tasks", "eval": "eval_tasks"}
    call = {"agent": name, **{arguments[split]: "..." for split in tasks}}
    if resume is not None:
        if model is not None:
            raise ConfigError("a run that is resumed keeps its model: leave model out")
        overrides = {join_key(*parts): value for parts, value in leaves(values)}
        run_dir = RunDir.open(Path(resume))
        return _resumed(run_dir, overrides, call=call, agent=item, tasks=tasks, quiet=quiet)
    if model is not None:
        values["model"] = model
    plan = _plan(parse_config(values), agent=item, tasks=tasks)
    return Training(plan, call=call if item is not None or tasks else {}, quiet=quiet)


def _resumed(
    run_dir: RunDir,
    overrides: Mapping[str, Any],
    *,
    settings: Sequence[str] = (),
    call: Mapping[str, str] | None = None,
    agent: object | None = None,
    tasks: Mapping[str, Iterable[Task]] | None = None,
    quiet: bool,
) -> Training | RunSummary:
    """The run in `run_dir`, to go on with; its summary where nothing is left to do."""
    if missing := run_dir.read_call().keys() - (call or {}).keys():
        raise ConfigError(
            f"{run_dir.path} was begun from Python, with objects that only Python can give again "
            f"({', '.join(sorted(missing))}): go on with {run_dir.how_to_resume()}"
        )
    config = load_config(file=run_dir.config, settings=settings, overrides=overrides)
    if config.serve.keeps_sessions and not config.serve.learn:
        raise ConfigError(f"{run_dir.path} only kept sessions: there is nothing to go on with")
    checkpoint = latest_checkpoint(run_dir.checkpoints)  # None: it goes on from its beginning
    changes = changed_settings(run_dir, config, is_saved=checkpoint is not None)
    if (why := why_finished(run_dir, config, changes)) is not None:
        if not quiet:
            TerminalView(sys.stderr).message(f"{run_dir.path} is finished: {why}")
        return finished_summary(run_dir)
    plan = _plan(config, agent=agent, tasks=tasks)
    return Training(plan, run_dir, checkpoint, changes=changes, quiet=quiet)


def _train(training: Training | RunSummary) -> RunSummary:
    if isinstance(training, RunSummary):
        return training
    with _begun(training) as run:
        run.summary = run_to_the_end(run.main())
    return run.whole_summary


@dataclass(slots=True)
class _Run:
    """A run that has begun: its directory is made, and locked."""

    training: Training
    run_dir: RunDir
    state: RunState
    progress: Progress
    summary: RunSummary | None = None
    """None until the run has ended by itself."""

    def main(self) -> Coroutine[Any, Any, RunSummary]:
        return run_training(
            self.training.plan,
            run_dir=self.run_dir,
            state=self.state,
            progress=self.progress,
            checkpoint=self.training.checkpoint,
        )

    @property
    def whole_summary(self) -> RunSummary:
        summary = self.summary or _interrupted(self.run_dir, self.state)
        return replace(summary, elapsed_s=self.progress.elapsed_s)


@contextmanager
def _begun(training: Training) -> Iterator[_Run]:
    """Make and lock the run's directory; after the block, tell the observers how the run ended.

    Ctrl-C leaves the block without an error: the summary then says that it was interrupted.
    """
    plan, config, run_dir = training.plan, training.plan.config, training.run_dir
    new_dir = None
    if run_dir is None:
        run_dir = new_dir = RunDir.create(config.run.dir, config.run.name, stem=plan.program.name)
        if training.call:
            run_dir.record_call(training.call)
    # A run that still goes on is not touched: `in_use` refuses it.
    with _removed_if_refused(new_dir), run_dir.in_use(), _waits_on_signal():
        _write_config(run_dir, config, plan.plugins)
        progress = _progress(plan, run_dir, quiet=training.quiet)
        if new_dir is None:
            step = step_of(training.checkpoint) if training.checkpoint is not None else None
            progress.report_resume(step, training.changes)
        run = _Run(training, run_dir, RunState(), progress)
        try:
            yield run
        except StoppedAtOnce:
            raise
        except KeyboardInterrupt:
            pass
        except ExceptionGroup as group:
            raise _with_way_on(_cause(group), run_dir) from group
        except ArealError as error:
            _with_way_on(error, run_dir)
            raise
        finally:  # whatever the reason
            numbers = run.whole_summary.numbers()
            plan.plugins.notify.on_run_end(run_dir=str(run_dir.path), summary=numbers)


def _write_config(run_dir: RunDir, config: Config, plugins: Plugins) -> None:
    """It may be resumed from another directory."""
    tables = engine_tables(config, plugins)
    located = with_absolute_paths(config, built_in=BUILT_IN, tables=tables)
    run_dir.write_config(located.model_dump(mode="json", exclude_none=True))


@contextmanager
def _removed_if_refused(run_dir: RunDir | None) -> Iterator[None]:
    """Leave nothing of a new run that could not start because it was asked for wrongly."""
    try:
        yield
    except ConfigError:
        if run_dir is not None and not run_dir.has_begun():
            shutil.rmtree(run_dir.path, ignore_errors=True)
        raise


def _progress(plan: RunPlan, run_dir: RunDir, *, quiet: bool) -> Progress:
    run = plan.config.run
    changed_plugins = run_dir.record_plugins(plan.plugins.installed_versions())
    progress = Progress(
        run_dir,
        name=f"{plan.program.name} on {plan.config.model}",
        total_steps=0 if run.is_endless else run.steps,
        writer=None if quiet else TerminalView(sys.stderr),
        notify=plan.plugins.notify,
        split=next(iter(plan.eval_tasks), ""),
    )
    progress.say(f"run: {run_dir.path} (areal-sdk inspect {run_dir.path} --live)")
    for change in changed_plugins:
        progress.say(f"warning: plugin {change}: what is sampled from here on may differ")
    return progress


def _waits_on_signal() -> AbstractContextManager[None]:
    """`kill -USR1` says who waits for what; only the main thread can hear signals."""
    if threading.current_thread() is threading.main_thread():
        return waits_on_signal()
    return nullcontext()


def _with_way_on(error: BaseException, run_dir: RunDir) -> BaseException:
    if latest_checkpoint(run_dir.checkpoints) is not None:
        error.add_note(f"go on with: {run_dir.how_to_resume()}")
    return error


def _interrupted(run_dir: RunDir, state: RunState) -> RunSummary:
    saved = latest_checkpoint(run_dir.checkpoints)
    return RunSummary(
        run_dir=str(run_dir.path),
        steps=state.step,
        version=state.version,
        train_seconds=state.train_seconds,
        ended="interrupted",
        saved_step=None if saved is None else step_of(saved),
        ledger=run_dir.read_ledger() or state.ledger,
        best=read_measured(run_dir.checkpoints / BEST),
    )


def _settings_of(agent: object, values: Mapping[str, Any]) -> Config:
    return parse_config({**values, "agent": agent} if isinstance(agent, str) else values)


def _endpoint(base_url: str | None, api_key: str | None) -> RemoteEndpoint | None:
    return None if base_url is None else RemoteEndpoint(base_url, api_key or "none")


def _evaluation(
    config: Config,
    split: str,
    *,
    endpoint: RemoteEndpoint | None,
    agent: object | None = None,
    tasks: Mapping[str, Iterable[Task]] | None = None,
    quiet: bool,
) -> Coroutine[Any, Any, EvalReport]:
    """Load the agent, and return its evaluation, which is yet to be awaited."""
    plugins = _load_plugins(config)
    item = None if isinstance(agent, str) else agent
    program = load_program(config, plugins=plugins, agent=item).with_tasks(tasks or {})
    writer = None if quiet else TerminalView(sys.stderr)
    view = EvalView(writer, name=f"{program.name} on {config.model}")
    return run_evaluation(
        config, program, plugins=plugins, split=split, view=view, endpoint=endpoint
    )


def _evaluate(evaluation: Coroutine[Any, Any, EvalReport]) -> EvalReport:
    try:
        return run_to_the_end(evaluation)
    except ExceptionGroup as group:
        raise _cause(group) from group


def _load_plugins(config: Config) -> Plugins:
    return load_plugins(files=map(Path, config.plugins))


def _given_tasks(**by_split: Iterable[Task] | None) -> dict[str, Iterable[Task]]:
    return {split: tasks for split, tasks in by_split.items() if tasks is not None}


def _cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first `ArealError` inside, else the first error. Tasks that end together raise a group."""
    leaves = list(_leaves(group))
    return next((error for error in leaves if isinstance(error, ArealError)), leaves[0])


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterable[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
