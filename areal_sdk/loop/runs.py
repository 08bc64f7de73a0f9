"""A run in its directory, whatever it learns from: begun, locked, interrupted, summed up, resumed.

Plan -> Training -> begun: run directory, progress -> Plan.run -> RunSummary
"""

import logging
import shlex
import shutil
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from areal_sdk.config import Config, load_config, with_absolute_paths
from areal_sdk.errors import ArealError, ChildDiedError, ConfigError, StorageError, cause_of
from areal_sdk.loop.learning.state import (
    Change,
    RunState,
    RunSummary,
    changed_settings,
    check_checkpoint,
    finished_summary,
    latest_checkpoint,
    step_of,
    why_finished,
)
from areal_sdk.loop.mirrored import Mirroring, bring_up_to_date, mirrored_at_end
from areal_sdk.loop.plan.models import find_base
from areal_sdk.loop.plan.parts import engine_tables
from areal_sdk.loop.progress import Progress
from areal_sdk.loop.services.elastic import RanksChange, is_elastic
from areal_sdk.loop.shutdown import StoppedAtOnce, run_to_the_end
from areal_sdk.models import BUILT_IN
from areal_sdk.plugins import Plugins
from areal_sdk.records.diagnosis.why import causes_of_end
from areal_sdk.records.notebook import status_writer
from areal_sdk.records.report import write_report
from areal_sdk.telemetry import MetricsLog, RunDir
from areal_sdk.telemetry.live.terminal import TerminalView
from areal_sdk.telemetry.live.waits import waits_on_signal
from areal_sdk.telemetry.run_dir import BEST, read_measured

logger = logging.getLogger(__name__)


class Plan(Protocol):
    """A run that was found to be possible."""

    @property
    def config(self) -> Config: ...

    @property
    def plugins(self) -> Plugins: ...

    @property
    def name(self) -> str:
        """The name of the agent, or of what is learnt: the run directory is named after it."""

    @property
    def splits(self) -> Sequence[str]:
        """The splits that are measured. The success of the first is shown."""

    def run(self, start: "Start") -> Coroutine[Any, Any, RunSummary]:
        """Run from the start or from its checkpoint."""


@dataclass(frozen=True, slots=True)
class Start:
    """The place and the state that a plan runs from."""

    run_dir: RunDir
    state: RunState
    """The state of the run, which the plan updates while the run goes on."""
    progress: Progress
    checkpoint: Path | None = None
    most_ranks: int | None = None
    """Number of trainer ranks for which there is room, if the run changes their number."""


@dataclass(frozen=True, slots=True)
class Training:
    """A run that can begin or continue, because everything that it needs was found."""

    plan: Plan
    make_plan: "Callable[[Config], Plan]"
    """The function that made `plan` from its settings. A run that goes on after a loss plans again."""
    run_dir: RunDir | None = None
    """Directory of a run that goes on; a new run gets a new one."""
    checkpoint: Path | None = None
    call: Mapping[str, str] = field(default_factory=dict)
    """The arguments of a new run that were objects: a resumed run needs them again."""
    changes: Sequence[Change] = ()
    """The settings that have another value in a run that goes on."""
    quiet: bool = False
    restarts: int = 0
    """Number of restarts so far, after the loss of a process."""
    mirroring: Mirroring | None = None
    """Mirror of a run that goes on after a loss."""
    most_ranks: int | None = None
    """Number of trainer ranks for which there was room when the run ended its processes in order to grow."""
    is_planned_once: bool = False
    """Whether the tasks cannot be read again, so that the run does not go on by itself."""


def resumed(
    run_dir: RunDir,
    overrides: Mapping[str, Any],
    make: Callable[[Config], Plan],
    *,
    settings: Sequence[str] = (),
    call: Mapping[str, str] | None = None,
    learns_from_data: bool = False,
    quiet: bool,
) -> Training | RunSummary:
    """The run in `run_dir`, ready to continue, or its summary if nothing is left to do."""
    if missing := run_dir.read_call().keys() - (call or {}).keys():
        raise ConfigError(
            f"{run_dir.path} was begun from Python, with objects that only Python can give again "
            f"({', '.join(sorted(missing))}): go on with {run_dir.how_to_resume()}"
        )
    config = load_config(file=run_dir.config, settings=settings, overrides=overrides)
    if config.finetune.objective is not None and not learns_from_data:
        raise ConfigError(f"{run_dir.path} learns from data: go on with {run_dir.how_to_resume()}")
    if config.serve.keeps_sessions and not config.serve.learn:
        raise ConfigError(
            f"{run_dir.path} only kept sessions and trained nothing: it cannot be resumed"
        )
    if run_dir.only_measured():
        raise ConfigError(f"{run_dir.path} only measured and trained nothing: it cannot be resumed")
    checkpoint = latest_checkpoint(run_dir.checkpoints)  # None: it goes on from its beginning
    changes = changed_settings(run_dir, config, is_saved=checkpoint is not None)
    if (why := why_finished(run_dir, config, changes)) is not None:
        bring_up_to_date(run_dir, config.run)
        if not quiet:
            TerminalView(sys.stderr).message(f"{run_dir.path} is finished: {why}")
        return finished_summary(run_dir)
    if checkpoint is not None:
        check_checkpoint(checkpoint)
    if config.trainer.lora.rank and run_dir.origin.is_file():
        find_base(run_dir, config)
    return Training(
        make(config), make, run_dir, checkpoint, call=call or {}, changes=changes, quiet=quiet
    )


def run_to_its_end(training: Training | RunSummary) -> RunSummary:
    while isinstance(training, Training):
        with begun(training) as run:
            run.summary = run_to_the_end(run.main())
        if run.loss is None:
            return run.whole_summary
        training = run.rest()
    return training


@dataclass(slots=True)
class BegunRun:
    """A run that has begun: its directory is made, and locked."""

    training: Training
    run_dir: RunDir
    state: RunState
    progress: Progress
    mirroring: Mirroring
    summary: RunSummary | None = None
    """None until the run has ended by itself."""
    loss: ChildDiedError | RanksChange | None = None
    """The reason why the run continues by itself with `rest`: the loss of a process, or room for more trainer ranks."""

    async def main(self) -> RunSummary:
        training = self.training
        start = Start(
            self.run_dir, self.state, self.progress, training.checkpoint, training.most_ranks
        )
        self.summary = await training.plan.run(start)
        await self.mirroring.catch_up()  # Ctrl-C ends only this
        return self.summary

    def can_go_on(self) -> bool:
        """Whether a run that has just lost a process continues by itself. A run that never began does not."""
        training = self.training
        is_left = training.restarts < training.plan.config.run.restarts
        return self.run_dir.has_begun() and is_left and not training.is_planned_once

    def rest(self) -> Training:
        """The rest of a run that continues by itself: the part after its last checkpoint, or all of it."""
        training = self.training
        most = training.plan.config.run.restarts
        checkpoint = latest_checkpoint(self.run_dir.checkpoints)
        way_on = "going on from the last checkpoint" if checkpoint else "beginning again"
        restarts, most_ranks = training.restarts, None
        if isinstance(self.loss, RanksChange):
            most_ranks = self.loss.num
            self.progress.say(f"{self.loss}; {way_on}")
        else:
            restarts += 1
            self.progress.say(f"warning: {self.loss}; {way_on} (restart {restarts} of {most})")
        return replace(
            training,
            plan=training.make_plan(training.plan.config),  # config.toml holds no secrets
            run_dir=self.run_dir,
            checkpoint=checkpoint,
            changes=(),
            restarts=restarts,
            mirroring=self.mirroring,
            most_ranks=most_ranks,
        )

    @property
    def whole_summary(self) -> RunSummary:
        summary = self.summary or _interrupted(self.run_dir, self.state)
        return replace(summary, elapsed_s=self.progress.elapsed_s)


@contextmanager
def begun(training: Training) -> Iterator[BegunRun]:
    """Make and lock the run's directory; after the block, tell the observers how the run ended.

    Ctrl-C leaves the block without an error: the summary then says that the run was interrupted. The block also ends
    without an error if a process is lost and the run goes on by itself (`run.restarts`), or if its ranks change.
    """
    plan, config, run_dir = training.plan, training.plan.config, training.run_dir
    if training.is_planned_once and is_elastic(config):
        raise ConfigError(
            "trainer.min_ranks: the run goes on with other ranks from a checkpoint, and its tasks came from an "
            "iterator that cannot be read again: give a list of tasks"
        )
    new_dir = None
    if run_dir is None:
        run_dir = new_dir = RunDir.create(config.run.dir, config.run.name, stem=plan.name)
        if training.call:
            run_dir.record_call(training.call)
    mirroring = training.mirroring or Mirroring(run_dir, config.run)
    with (
        removed_if_refused(new_dir),
        mirrored_at_end(mirroring),
        ExitStack() as once_free,
        run_dir.in_use(),
        _waits_on_signal(),
        ExitStack() as at_end,
    ):
        if new_dir is not None:  # what goes on is not touched before nothing refuses it any more
            write_config(run_dir, config, plan.plugins)
        mirroring.begin()
        once_free.enter_context(report_at_end(run_dir))
        at_end.enter_context(_failure_recorded(run_dir))
        if new_dir is None:
            run_dir.report.unlink(missing_ok=True)  # of an earlier end
            write_config(run_dir, config, plan.plugins)
        progress = _progress(plan, run_dir, quiet=training.quiet)
        if new_dir is None:
            step = step_of(training.checkpoint) if training.checkpoint is not None else None
            plays_again = not config.serve.learn
            progress.report_resume(step, training.changes, plays_again=plays_again)
        run = BegunRun(training, run_dir, RunState(), progress, mirroring)
        plan.plugins.notify.on_run_start(
            run_dir.path.name, str(run_dir.path), run_dir.read_config()
        )
        try:
            yield run
        except StoppedAtOnce as stopped:
            stopped.add_note(run.whole_summary.lost)
            stopped.add_note(f"go on with: {run_dir.how_to_resume()}")
            raise
        except KeyboardInterrupt:
            pass
        except (ExceptionGroup, ArealError) as error:
            cause = cause_of(error)
            if isinstance(cause, RanksChange):
                run.loss = cause
                mirroring.goes_on = True
            elif (loss := _loss_in(cause)) is not None and run.can_go_on():
                run.loss = loss
                mirroring.goes_on = True
            elif cause is error:
                _with_way_on(error, run_dir)
                raise
            else:
                raise _with_way_on(cause, run_dir) from error
        finally:  # whatever the reason
            numbers = run.whole_summary.numbers()
            plan.plugins.notify.on_run_end(run_dir=str(run_dir.path), summary=numbers)


@contextmanager
def report_at_end(run_dir: RunDir) -> Iterator[None]:
    """Write `report.html` after the block, however it ends, unless a second Ctrl-C came."""
    is_hurried = False
    try:
        yield
    except StoppedAtOnce:
        is_hurried = True
        raise
    finally:
        if not is_hurried and run_dir.has_begun():
            try:
                write_report(run_dir)
            except Exception:  # noqa: BLE001 - the run is written: a page must not end it
                logger.warning(
                    "no report was written; areal-sdk --debug inspect %s --report shows why",
                    shlex.quote(str(run_dir.path)),
                )


@contextmanager
def _failure_recorded(run_dir: RunDir) -> Iterator[None]:
    """Write the error that ends the run into its metrics: else it looks as if it was interrupted."""
    try:
        yield
    except Exception as error:
        cause = cause_of(error)
        if run_dir.has_begun() or not isinstance(cause, ConfigError):  # else nothing is left of it
            with suppress(StorageError):
                metrics = MetricsLog(run_dir.metrics)
                metrics.log("failed", {"error": f"{type(cause).__name__}: {cause}"})
                metrics.close()
        raise


def write_config(run_dir: RunDir, config: Config, plugins: Plugins) -> None:
    """Write the configuration with absolute paths: the run may be resumed from another directory."""
    tables = engine_tables(config, plugins)
    located = with_absolute_paths(config, built_in=BUILT_IN, tables=tables)
    run_dir.write_config(located.model_dump(mode="json", exclude_none=True))


@contextmanager
def removed_if_refused(run_dir: RunDir | None) -> Iterator[None]:
    """Remove the directory of a new run that could not start because of a wrong setting."""
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
        name=f"{plan.name} on {plan.config.model}",
        total_steps=0 if run.is_endless else run.steps,
        writer=None if quiet else status_writer(),
        notify=plan.plugins.notify,
        split=next(iter(plan.splits), ""),
        keep_bytes=run.keep_bytes,
    )
    progress.say(f"run: {run_dir.path} (areal-sdk inspect {run_dir.path} --live)")
    for change in changed_plugins:
        progress.say(f"warning: plugin {change}: what is sampled from here on may differ")
    return progress


def _waits_on_signal() -> AbstractContextManager[None]:
    """Let `kill -USR1` print who waits for what. Only the main thread can handle signals."""
    if threading.current_thread() is threading.main_thread():
        return waits_on_signal()
    return nullcontext()


def _with_way_on(error: BaseException, run_dir: RunDir) -> BaseException:
    if latest_checkpoint(run_dir.checkpoints) is not None:
        error.add_note(f"go on with: {run_dir.how_to_resume()}")
    if run_dir.has_begun():
        with suppress(Exception):  # what `why` cannot read must not hide the error
            for line in causes_of_end(run_dir, error):
                error.add_note(line)
        error.add_note(f"look for faults: areal-sdk why {shlex.quote(str(run_dir.path))}")
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


def _loss_in(error: BaseException) -> ChildDiedError | None:
    """The death of a process behind `error`: an engine that died while it started is an `EngineError`."""
    deaths = (each for each in (error, error.__cause__) if isinstance(each, ChildDiedError))
    return next(deaths, None)
