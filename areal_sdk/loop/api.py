"""The commands as functions: configuration in, summary out. Each runs its own event loop."""

import logging
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from areal_sdk.config import Config, idle_settings, load_config, parse_config, with_absolute_paths
from areal_sdk.config.keys import join_key, leaves
from areal_sdk.errors import ArealError, ConfigError
from areal_sdk.gateway.upstream.gateway import check_address
from areal_sdk.loop.engines import engine_name, engine_tables
from areal_sdk.loop.evaluation import EvalView, run_evaluation
from areal_sdk.loop.program import load_program
from areal_sdk.loop.progress import Progress
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
from areal_sdk.loop.training import Plan, make_live_plan, make_plan, run_training
from areal_sdk.loop.weights import find_served_model
from areal_sdk.models import BUILT_IN
from areal_sdk.plugins import Plugins, load_plugins
from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.telemetry import RunDir
from areal_sdk.telemetry.run_dir import BEST, read_measured
from areal_sdk.telemetry.terminal import TerminalView
from areal_sdk.telemetry.waits import waits_on_signal
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
    given = _given_tasks(train=tasks, eval=eval_tasks)
    item = None if isinstance(agent, str) else agent
    call = {
        "agent": getattr(agent, "__name__", repr(agent) if item is None else type(agent).__name__),
        **({"tasks": "..."} if tasks is not None else {}),
        **({"eval_tasks": "..."} if eval_tasks is not None else {}),
    }
    values = {**settings, **({"agent": agent} if item is None else {})}
    if resume is not None:
        if model is not None:
            raise ConfigError("a run that is resumed keeps its model: leave model out")
        overrides = {join_key(*parts): value for parts, value in leaves(values)}
        return _resume(
            RunDir.open(Path(resume)), overrides, call=call, agent=item, tasks=given, quiet=quiet
        )
    if model is not None:
        values["model"] = model
    plan = _plan(parse_config(values), agent=item, tasks=given)
    return _train(plan, call=call if item is not None or given else {}, quiet=quiet)


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
    values = {"model": model, **settings}
    if isinstance(agent, str):
        values["agent"] = agent
    return _evaluate(
        parse_config(values),
        split=split,
        base_url=base_url,
        api_key=api_key,
        agent=None if isinstance(agent, str) else agent,
        tasks=_given_tasks(**{split: tasks}),
        quiet=quiet,
    )


def train_config(config: Config, *, quiet: bool = False) -> RunSummary:
    return _train(_plan(config), quiet=quiet)


def resume_training(
    path: Path,
    *,
    settings: Sequence[str] = (),
    overrides: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> RunSummary:
    """Go on with the run in `path` from its latest checkpoint; `settings` may raise its limits."""
    return _resume(RunDir.open(path), overrides or {}, settings=settings, quiet=quiet)


def evaluate_config(
    config: Config,
    *,
    split: str,
    base_url: str | None = None,
    api_key: str | None = None,
    quiet: bool = False,
) -> EvalReport:
    return _evaluate(config, split=split, base_url=base_url, api_key=api_key, quiet=quiet)


def check(config: Config) -> None:
    """`--dry-run`: everything that can be wrong before anything heavy starts."""
    _plan(config)


def serve_config(config: Config, *, say: Callable[[str], None]) -> RunSummary | None:
    """Serve until interrupted; the summary of what was learnt, where it learns."""
    if config.serve.learn:
        return _train(_plan(config))
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
) -> Plan:
    for line in idle_settings(config, engine=engine_name(config.engine)):
        logger.warning("%s", line)
    plugins = _load_plugins(config)
    if config.serve.learn:
        return make_live_plan(config, plugins=plugins)
    program = load_program(config, plugins=plugins, agent=agent)
    return make_plan(config, plugins=plugins, program=program.with_tasks(tasks or {}))


def _resume(
    run_dir: RunDir,
    overrides: Mapping[str, Any],
    *,
    settings: Sequence[str] = (),
    call: Mapping[str, str] | None = None,
    agent: object | None = None,
    tasks: Mapping[str, Iterable[Task]] | None = None,
    quiet: bool,
) -> RunSummary:
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
    return _train(plan, run_dir=run_dir, checkpoint=checkpoint, changes=changes, quiet=quiet)


def _train(
    plan: Plan,
    *,
    run_dir: RunDir | None = None,
    checkpoint: Path | None = None,
    call: Mapping[str, str] | None = None,
    changes: Sequence[Change] | None = None,
    quiet: bool = False,
) -> RunSummary:
    """`call`: what was given as objects to a new run, for whoever resumes it.

    `changes`: of the settings of a run that is resumed; None: it is a new one.
    """
    config = plan.config
    new_dir = None
    if run_dir is None:
        run_dir = new_dir = RunDir.create(config.run.dir, config.run.name, stem=plan.program.name)
        if call:
            run_dir.record_call(call)
    state = RunState()
    # A run that still goes on is not touched.
    with _removed_if_refused(new_dir), run_dir.in_use(), _waits_on_signal():
        _write_config(run_dir, config, plan.plugins)
        progress = _progress(plan, run_dir, quiet=quiet)
        if changes is not None:
            step = step_of(checkpoint) if checkpoint is not None else 0
            progress.report_resume(step or 0, changes)
        summary: RunSummary | None = None
        try:
            summary = run_to_the_end(
                run_training(
                    plan, run_dir=run_dir, state=state, progress=progress, checkpoint=checkpoint
                )
            )
        except StoppedAtOnce:
            raise
        except KeyboardInterrupt:
            summary = _interrupted(run_dir, state)
        except ExceptionGroup as group:
            raise _with_way_on(_cause(group), run_dir) from group
        except ArealError as error:
            _with_way_on(error, run_dir)
            raise
        finally:  # whatever the reason
            summary = summary or _interrupted(run_dir, state)
            summary = replace(summary, elapsed_s=progress.elapsed_s)
            plan.plugins.notify.on_run_end(run_dir=str(run_dir.path), summary=summary.numbers())
    return summary


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


def _progress(plan: Plan, run_dir: RunDir, *, quiet: bool) -> Progress:
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


def _evaluate(
    config: Config,
    *,
    split: str,
    base_url: str | None = None,
    api_key: str | None = None,
    agent: object | None = None,
    tasks: Mapping[str, Iterable[Task]] | None = None,
    quiet: bool,
) -> EvalReport:
    plugins = _load_plugins(config)
    program = load_program(config, plugins=plugins, agent=agent).with_tasks(tasks or {})
    writer = None if quiet else TerminalView(sys.stderr)
    view = EvalView(writer, name=f"{program.name} on {config.model}")
    try:
        return run_to_the_end(
            run_evaluation(
                config,
                program,
                plugins=plugins,
                split=split,
                view=view,
                base_url=base_url,
                api_key=api_key,
            )
        )
    except ExceptionGroup as group:
        raise _cause(group) from group


def _load_plugins(config: Config) -> Plugins:
    return load_plugins(files=map(Path, config.plugins))


def _given_tasks(**by_split: Iterable[Task] | None) -> dict[str, Iterable[Task]]:
    return {split: tasks for split, tasks in by_split.items() if tasks is not None}


def _cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The first error of ours inside, else the first error: groups are how tasks end together."""
    leaves = list(_leaves(group))
    return next((error for error in leaves if isinstance(error, ArealError)), leaves[0])


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterable[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
