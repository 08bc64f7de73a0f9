"""A run tells what it does at the moment, and that it still does it."""

import io
import math
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from areal_sdk.config import RolloutSection
from areal_sdk.flow import FlowRules
from areal_sdk.loop.evaluation.earlier import eval_event
from areal_sdk.loop.learning.state import RunState
from areal_sdk.loop.progress import Progress
from areal_sdk.plugins import load_plugins
from areal_sdk.records.estimates import Interval
from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.callers import CallerTasks
from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.telemetry import Ledger, MetricsLog, RunDir
from areal_sdk.telemetry.live.terminal import TerminalView
from areal_sdk.telemetry.metrics import last_event, told
from areal_sdk.types import Episode, Outcome, Task
from tests.loop.runs import finish, start_training
from tests.toolbox.waiting import until

EPISODE = Episode("e", Task("t"), (), Outcome.scored(1.0))


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@asynccontextmanager
async def shown(
    directory: Path,
    stream: io.StringIO,
    *,
    heartbeat_s: float = 3600.0,
    split: str = "eval",
    keep_bytes: float = math.inf,
) -> AsyncIterator[Progress]:
    (directory / "run").mkdir(exist_ok=True)
    progress = Progress(
        RunDir(directory / "run"),
        name="agent",
        total_steps=20,
        writer=TerminalView(stream, environ={}),
        notify=load_plugins().notify,
        split=split,
        keep_bytes=keep_bytes,
        heartbeat_s=heartbeat_s,
    )
    progress.begin(RunState())
    async with progress:
        yield progress


def buffer() -> TrajectoryBuffer:
    rules = FlowRules(RolloutSection(batch=16, group_size=4, max_staleness=2, max_inflight=16))
    return TrajectoryBuffer(rules, tasks=CallerTasks(), ledger=Ledger())


async def test_a_terminal_shows_each_part_of_the_start(tmp_path: Path) -> None:
    terminal = Terminal()
    async with shown(tmp_path, terminal) as progress:
        await until(lambda: "starting: engine and trainer load the model" in terminal.getvalue())
        progress.enter("supervised warm-up: 60 steps")
        await until(lambda: "supervised warm-up" in terminal.getvalue())
        evaluated = progress.evaluating("before", "eval", total=100, step=0)
        evaluated(EPISODE)
        await until(lambda: "evaluating before: 1 of 100" in terminal.getvalue())


async def test_notes_and_warnings_are_events_and_other_lines_are_not(tmp_path: Path) -> None:
    terminal = Terminal()
    async with shown(tmp_path, terminal) as progress:
        progress.begin(RunState(step=3))
        for line in ("note: it runs away", "warning: a rank died", "before: eval: success 0.5"):
            progress.say(line)
    progress.say("warning: it goes on")  # after the end of the view, as a run that restarts does
    run = RunDir(tmp_path / "run")
    events = [
        (event["step"], event["level"], event["text"]) for event in run.read_metrics(kind="notice")
    ]
    assert events == [
        (3, "note", "it runs away"),
        (3, "warning", "a rank died"),
        (3, "warning", "it goes on"),
    ]


def test_notices_outlive_the_steps_that_a_resumed_run_takes_again(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path, "run")
    log = MetricsLog(run.metrics)
    for step in (1, 2):
        log.log("step", {"step": step})
        log.log("notice", {"step": step, "level": "note", "text": "too old"})
    log.log("resume", {"step": 1, "changed": {}})
    log.log("step", {"step": 2})
    log.log("end", {"ended": "steps"})
    log.log("notice", {"step": 2, "level": "warning", "text": "the mirror is behind"})
    log.close()
    history = run.read_history()
    assert [event["step"] for event in history if event["kind"] == "step"] == [1, 2]
    assert [(one["step"], one["times"], one["text"]) for one in told(history)] == [
        (1, 2, "too old"),
        (2, 1, "the mirror is behind"),
    ]
    assert last_event(history)["kind"] == "end"
    assert last_event([]) == {}


async def test_a_run_that_begins_to_delete_its_oldest_episodes_says_so_once(
    tmp_path: Path,
) -> None:
    terminal = Terminal()
    async with shown(tmp_path, terminal, keep_bytes=4000) as progress:
        for _ in range(100):
            progress.untrained(EPISODE, "live")
    run = RunDir(tmp_path / "run")
    (event,) = run.read_metrics(kind="notice")
    assert "(run.keep_episodes): from now on the oldest are deleted" in event["text"]
    assert terminal.getvalue().count(f"note: {event['text']}") == 1
    assert run.num_deleted() == 100 - len(list(run.list_episodes())) > 50


async def test_the_last_view_of_a_run_that_ended_well_claims_no_work(tmp_path: Path) -> None:
    async with shown(tmp_path, Terminal()) as progress:
        progress.enter("writing the final weights")
    live = RunDir(tmp_path / "run").read_live()
    assert live is not None
    assert live["note"] == ""


async def test_a_run_that_samples_nothing_shows_no_rate(tmp_path: Path) -> None:
    pipe = io.StringIO()
    async with shown(tmp_path, pipe) as progress:
        progress.begin(RunState(step=20))
    assert "step 20/20" in pipe.getvalue()
    assert "tok/s" not in pipe.getvalue()


async def test_the_clock_never_goes_back_and_training_has_its_own(tmp_path: Path) -> None:
    async with shown(tmp_path, Terminal()) as progress:
        before = progress.elapsed_s
        progress.watch(buffer())
    live = RunDir(tmp_path / "run").read_live()
    assert live is not None
    assert live["elapsed_s"] - live["train_s"] >= before


async def test_a_pipe_hears_that_the_run_goes_on(tmp_path: Path) -> None:
    pipe = io.StringIO()
    async with shown(tmp_path, pipe, heartbeat_s=0.0) as progress:
        progress.evaluating("before", "eval", total=9, step=0)(EPISODE)
        await until(lambda: "step 0/20  evaluating before: 1 of 9" in pipe.getvalue())


async def test_a_pipe_hears_of_a_warm_up_ten_times(tmp_path: Path) -> None:
    pipe = io.StringIO()
    async with shown(tmp_path, pipe) as progress:
        for step in range(1, 201):
            progress.report_warmup(step, 200, {"loss": 0.5})
    assert pipe.getvalue().count("supervised warm-up") == 10
    assert "supervised warm-up 200/200, loss 0.500  0:" in pipe.getvalue()


def report(split: str, success: float) -> EvalReport:
    rate = Interval(success, 0.0, 1.0)
    return EvalReport(split, 4, 4, 4, rate, None, {}, {}, {}, 0, 1.0, 0.1)


async def test_the_view_shows_the_success_of_the_first_split_from_before_to_now(
    tmp_path: Path,
) -> None:
    async with shown(tmp_path, Terminal(), split="test") as progress:
        progress.report_eval("before", report("test", 0.25), step=0)
        progress.report_eval("before", report("eval", 0.1), step=0)
        progress.report_eval("step-5", report("test", 0.75), step=5)
    live = RunDir(tmp_path / "run").read_live()
    assert live is not None
    assert (live["success_before"], live["success"]) == (0.25, 0.75)


async def test_a_run_that_measured_nothing_before_claims_no_success_before(tmp_path: Path) -> None:
    async with shown(tmp_path, Terminal()) as progress:
        progress.report_eval("step-5", report("eval", 0.5), step=5)
        progress.report_eval("step-10", report("eval", 0.75), step=10)
    live = RunDir(tmp_path / "run").read_live()
    assert live is not None
    assert (live.get("success_before"), live["success"]) == (None, 0.75)


async def test_a_resumed_run_shows_its_records_before_the_trainer_has_loaded(
    tmp_path: Path,
) -> None:
    run = RunDir.create(tmp_path, "run")
    log = MetricsLog(run.metrics)
    log.log("eval", eval_event("before", report("eval", 0.25), step=0))
    for step in (1, 2, 3):
        log.log("step", {"step": step, "batch/reward": step / 4})
    log.close()
    async with shown(tmp_path, Terminal()) as progress:
        progress.report_resume(2, [], plays_again=True)
    live = run.read_live()
    assert live is not None
    assert (live["step"], live["rewards"], live["success_before"]) == (2, [0.25, 0.5], 0.25)


def test_a_piped_run_tells_each_part_of_it_from_its_start(
    tmp_path: Path, parts: tuple[str, ...]
) -> None:
    settings: dict[str, Any] = {"run__steps": 1, "eval__before": True, "eval__tasks": 4}
    output = finish(start_training(tmp_path, *parts, **settings))
    told = (
        rf"run: {re.escape(str(tmp_path / 'run'))} \(areal-sdk inspect \S+ --live\)",
        r"starting: engine and trainer load the model  0:0\d",
        r"evaluating before: 4 episodes  \d:\d\d",
        r"before: eval: success .*",
        r"training to step 1  \d:\d\d",
        r"step 1/1  .*",
        r"writing the final weights  \d:\d\d",
    )
    assert re.match(r"\n(?:.*\n)*?".join(told), output), output
