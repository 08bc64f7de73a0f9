"""Reports of a run, to its directory and to the terminal."""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Self

from areal_sdk.errors import StorageError, cause_of
from areal_sdk.loop.evaluation.earlier import (
    BEFORE,
    eval_event,
    lines_of,
    recorded_before,
    title_of,
)
from areal_sdk.loop.learning.state import Change, RunState, RunSummary, flat_numbers
from areal_sdk.plugins import Observers
from areal_sdk.rollout.buffer import TrajectoryBuffer
from areal_sdk.rollout.evaluation import EvalReport
from areal_sdk.rollout.groups import Rejection, RolloutBatch, ScoredEpisode, TriagedEpisode
from areal_sdk.telemetry import EpisodeWriter, MetricsLog, Rate, RunDir
from areal_sdk.telemetry.live.flight import FLIGHT, FlightRecorder
from areal_sdk.telemetry.live.terminal import (
    RunStatus,
    StatusWriter,
    reward_text,
    shares_line,
    source_shares,
)
from areal_sdk.telemetry.live.view import HEARTBEAT_S, LiveView, has_line
from areal_sdk.telemetry.live.waits import current_waits
from areal_sdk.telemetry.metrics import NOTICES
from areal_sdk.trajectory import Credit
from areal_sdk.types import Episode

CURVE_POINTS = 240


class Progress:
    """Writes metrics, episodes and the ledger, and paints the live view inside `async with`."""

    def __init__(
        self,
        run_dir: RunDir,
        *,
        name: str,
        total_steps: int,
        writer: StatusWriter | None,
        notify: Observers,
        split: str = "eval",
        keep_bytes: float = math.inf,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        """`split` is the split whose success is shown. `keep_bytes` is the room for episodes on disk."""
        self._run_dir = run_dir
        self._split = split
        self._name = name
        self._total_steps = total_steps
        self._flight = FlightRecorder(run_dir.path / FLIGHT)
        self._view = LiveView(
            writer,
            self._live,
            heartbeat_s=heartbeat_s,
            on_refresh=self._write_live,
            on_say=self._flight.hear,
        )
        self._parts: Callable[[], Mapping[str, Any]] = dict
        self._notify = notify
        self._metrics = MetricsLog(run_dir.metrics)
        self._episodes = EpisodeWriter(
            run_dir.episodes, keep_bytes=keep_bytes, say=lambda text: self.say(f"note: {text}")
        )
        self._sampled, self._trained = Rate(), Rate()
        self._rewards: deque[float | None] = deque(maxlen=CURVE_POINTS)
        self._success: float | None = None
        self._success_step: int | None = None
        self._success_before: float | None = None
        self._metrics_of_step: Mapping[str, float] = {}
        self._state = RunState()
        self._resumed_step = 0
        self._phase = ""
        self._evaluations: dict[str, tuple[int, int]] = {}
        self._buffer: TrajectoryBuffer | None = None
        self._swap_s = 0.0
        self._served = 0
        self._train_began: float | None = None

    async def __aenter__(self) -> Self:
        self.enter("starting: engine and trainer load the model")
        await self._view.__aenter__()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        if error is None:
            self._phase = ""  # else it says what the run was doing
        self._view.show()
        self._flight.note(self._live(), {}, ended=_told_end(error))
        await self._view.__aexit__()
        self._flight.close()
        self._metrics.close()
        self._episodes.close()

    def begin(self, state: RunState) -> None:
        """Show this run's state from now on."""
        self._state = state

    @contextlib.asynccontextmanager
    async def following(self, parts: Callable[[], Mapping[str, Any]]) -> AsyncIterator[None]:
        """Put what `parts` returns, the state of the run's parts, into the flight record within the block."""
        self._parts = parts
        try:
            yield
        finally:
            self._parts = dict

    def watch(self, buffer: TrajectoryBuffer) -> None:
        """Show the numbers of this buffer from now on: training begins."""
        self._buffer = buffer
        buffer.on_dropped = self._episodes.mark_dropped
        self._train_began = time.monotonic() - self._state.train_seconds
        self.enter(f"training to step {self._total_steps}" if self._total_steps else "training")
        self._phase = ""  # the books say it

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run began or was resumed, loading and evaluations included."""
        return self._view.elapsed_s

    def say(self, text: str) -> None:
        """Print a line that stays. A line that begins with `note:` or `warning:` is an event of the metrics too."""
        self._view.say(text)
        level, _, notice = text.partition(": ")
        if level in NOTICES:
            step = max(self._state.step, self._resumed_step)
            with contextlib.suppress(StorageError):  # a write that matters more raises the error
                self._metrics.log("notice", {"step": step, "level": level, "text": notice})

    def enter(self, phase: str) -> None:
        """Name the activity of the run from now on. In a log, where nothing is repainted, this is a line."""
        self._phase = phase
        self._view.enter(phase)

    def report_resume(
        self, step: int | None, changes: Sequence[Change], *, plays_again: bool
    ) -> None:
        """Note that the run goes on after `step` and repeats later steps; without a checkpoint it begins anew.
        `plays_again`: the run plays again the episodes that were not trained by `step`, which it cannot do with those
        of callers."""
        if lost := self._run_dir.lost_metrics():
            self.say(f"warning: {lost}")
        changed = {change.key: [change.before, change.after] for change in changes}
        self._metrics.log("resume", {"step": step or 0, "changed": changed})
        self._episodes.mark_resumed(step, plays_again=plays_again)
        told = "it begins anew" if step is None else "it goes on before its first step"
        self.say(f"resumed after step {step}" if step else f"resumed: {told}")
        for change in changes:
            self.say(f"  changed: {change}")
        self._recall(step or 0)

    def _recall(self, step: int) -> None:
        """Show the records of the run up to `step`, until there are newer ones."""
        self._resumed_step = step
        steps = self._run_dir.read_steps()
        self._rewards.extend(one.get("batch/reward") for one in steps if one["step"] <= step)
        before = recorded_before(self._run_dir, (self._split,)).get(self._split)
        if step and before is not None and before.success is not None:
            self._success = self._success_before = before.success.value
            self._success_step = 0

    def report_end(self, summary: RunSummary) -> None:
        """Note that the run ended by itself, and has written everything."""
        self._metrics.log("end", summary.to_json())

    def finished(
        self, episode: Episode | TriagedEpisode, triaged: ScoredEpisode | Rejection
    ) -> None:
        """Note a training episode that ended, and its fate."""
        version = self._state.version
        reason = triaged.reason if isinstance(triaged, Rejection) else None
        if isinstance(episode, TriagedEpisode):
            self._sampled.add(episode.num_sampled)
            self._episodes.append(episode.record, version=version)
            if not self._notify.hear_episodes:
                return
            episode = episode.read()
        else:
            self._count(episode)
            trained = () if isinstance(triaged, Rejection) else triaged.trajectories
            self._episodes.write(episode, trajectories=trained, dropped=reason, version=version)
        self._notify.on_episode(episode, dropped="" if reason is None else reason.value)

    def untrained(self, episode: Episode, split: str) -> None:
        """Note a caller's episode that the ledger does not count."""
        self._episodes.write(episode, version=self._state.version, split=split)
        self._count(episode)

    def evaluating(
        self, name: str, split: str, *, total: int, step: int
    ) -> Callable[[Episode], None]:
        """Note that an evaluation of `total` episodes after `step` begins. Returns the function that takes each
        episode."""
        title = title_of(name, split)
        self._evaluations[title] = (0, total)
        self._view.enter(f"{title}: {total} episodes")

        def evaluated(episode: Episode) -> None:
            version = self._state.version
            self._episodes.write(episode, version=version, split=split, measures=step)
            self._count(episode)
            self._notify.on_eval_episode(name, split, episode)
            self._evaluations[title] = (self._evaluations[title][0] + 1, total)

        return evaluated

    def report_eval(
        self, name: str, report: EvalReport, *, step: int, is_known: bool = False
    ) -> None:
        """Note that an evaluation ended. `step` made the weights with which it began. `is_known`: its numbers were reported
        under another name."""
        self._evaluations.pop(title_of(name, report.split), None)
        self._metrics.log("eval", eval_event(name, report, step=step))
        self._notify.on_evaluation(name, report.split, step, report.metrics())
        if report.success is not None and report.split == self._split:
            self._success, self._success_step = report.success.value, step
            if name == BEFORE:
                self._success_before = self._success
        if is_known:
            return
        for line in lines_of(name, report, step=step):
            self.say(line)

    def report_warmup(self, step: int, total: int, metrics: Mapping[str, float]) -> None:
        self._metrics.log("sft", {"step": step, **metrics})
        self._phase = f"supervised warm-up {step}/{total}, loss {metrics['loss']:.3f}"
        if has_line(step, total):
            self.enter(self._phase)

    def report_learning(self, state: RunState, metrics: Mapping[str, float]) -> dict[str, float]:
        """Report one step of a fine-tuning run. Returns its numbers, flat."""
        self._trained.add(metrics.get("num_tokens", 0.0))
        values = {
            "step": state.step,
            "version": state.version,
            "train_seconds": state.train_seconds,
            **{f"train/{key}": value for key, value in metrics.items()},
        }
        self._metrics.log("step", values)
        shown = ("loss", "accuracy")
        numbers = [f"{name} {metrics[name]:.3f}" for name in shown if name in metrics]
        total = self._total_steps
        self._phase = ", ".join([f"step {state.step}/{total}", *numbers])
        if skipped := metrics.get("num_skipped_updates"):
            self.say(
                f"warning: step {state.step}: {skipped:.0f} update left out: the gradient was not finite"
            )
        if has_line(state.step, total):
            self.enter(self._phase)
        return flat_numbers(values)

    def report_held_out(self, name: str, values: Mapping[str, float], *, step: int) -> None:
        """Report the loss on held-out data after `step`."""
        self._metrics.log("held_out", {"name": name, "step": step, **values})
        numbers = ", ".join(f"{key} {value:.4f}" for key, value in values.items())
        self.say(f"{name}: held-out data: {numbers}")

    def delivered(self, version: int, *, seconds: float) -> None:
        """Note that the engine has taken the weights `version`."""
        self._served, self._swap_s = version, seconds

    def report_state(self, state: RunState, *, waiting: Sequence[str]) -> None:
        """Note that a step is taken: `state` may be saved from now on. The `waiting` groups are not part of it."""
        self._episodes.mark_taken(state.step, waiting=waiting)

    def report_step(
        self,
        state: RunState,
        batch: RolloutBatch,
        metrics: Mapping[str, float],
        credit: Mapping[str, Credit],
    ) -> dict[str, float]:
        """Report one step, also one that changed no weights. Returns its numbers, flat."""
        trained = {name: credit.get(name, Credit()) for name in batch.episode_ids}
        self._episodes.mark_trained(trained, step=state.step)
        self._rewards.append(batch.metrics.get("reward"))
        self._trained.add(metrics.get("num_tokens", 0.0))
        values = {
            "step": state.step,
            "version": state.version,
            "train_seconds": state.train_seconds,
            "sampled_per_s": self._sampled.per_second(),
            "engine_update_s": self._swap_s,
            **{f"batch/{key}": value for key, value in batch.metrics.items()},
            **{f"train/{key}": value for key, value in metrics.items()},
            "ledger": state.ledger,
        }
        self._metrics.log("step", values)
        numbers = flat_numbers(values)
        shares = source_shares(numbers)
        if self._view.is_log and shares != source_shares(self._metrics_of_step):
            self.say(f"shares from step {state.step} on: {shares_line(shares)}")
        self._metrics_of_step = numbers
        for notice in batch.notices:
            self.say(f"note: {notice}")
        updates, skipped = metrics.get("num_updates", 0.0), metrics.get("num_skipped_updates", 0.0)
        if not updates and not skipped and "rolled_back_to" not in metrics:
            self.say(f"step {state.step}: {_no_gradient(batch.metrics)}")
        elif skipped:
            of = skipped + updates
            self.say(
                f"warning: step {state.step}: {skipped:.0f} of {of:.0f} updates left out: the "
                f"gradient was not finite (loss {metrics['loss']:g})"
            )
        if self._view.is_log:
            self._view.show()
        return numbers

    def _count(self, episode: Episode) -> None:
        self._sampled.add(sum(len(turn.output_tokens) for turn in episode.turns))

    def _write_live(self, live: RunStatus) -> None:
        if self._flight.is_due:
            self._flight.note(live, {"served": self._served, **self._parts()})
        with contextlib.suppress(StorageError):  # a write that matters more raises the error
            self._run_dir.write_live(live.as_json())

    def _live(self) -> RunStatus:
        buffer = self._buffer
        return RunStatus(
            name=self._name,
            # The state is that of the checkpoint once the trainer has loaded it.
            step=max(self._state.step, self._resumed_step),
            total_steps=self._total_steps,
            version=max(self._state.version, self._resumed_step),
            elapsed_s=self.elapsed_s,
            train_s=0.0 if self._train_began is None else time.monotonic() - self._train_began,
            rewards=tuple(self._rewards),
            success_before=self._success_before,
            success=self._success,
            success_step=self._success_step,
            metrics=self._metrics_of_step,
            # A run that learns from data samples nothing.
            sampled_per_s=self._sampled.per_second() if self._sampled.total else None,
            trained_per_s=self._trained.per_second() if self._metrics_of_step else None,
            ledger=buffer.ledger.snapshot() if buffer is not None else {},
            waits=[wait.as_json() for wait in current_waits()],
            note=self._doing(),
        )

    def _doing(self) -> str:
        evaluations = self._evaluations.items()
        counts = [f"{title}: {done} of {total}" for title, (done, total) in evaluations]
        return ", ".join(counts) or self._phase


def _no_gradient(batch: Mapping[str, float]) -> str:
    """The reason why a step changed nothing. Without these words it looks like a step that trained.

    >>> _no_gradient({"groups": 0.0, "episodes": 0.0})
    'no gradient: nothing in this batch can be trained'
    >>> _no_gradient({"groups": 1.0, "episodes": 1.0, "uniform_groups": 0.0}).partition(":")[2][:43]
    ' nothing in this batch can be trained. With'
    """
    groups = batch.get("groups")
    if groups and batch.get("uniform_groups") == groups:
        return (
            "no gradient: all rewards of each group are equal "
            f"(mean {reward_text(batch['reward'])}), so no episode is better than its siblings"
        )
    said = "no gradient: nothing in this batch can be trained"
    if groups and batch.get("episodes") == groups:
        said += (
            ". Without siblings, a reward teaches by differing from earlier ones of its caller or "
            "task: a first one has none"
        )
    return said


def _told_end(error: BaseException | None) -> str:
    if error is None or isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return "end" if error is None else "Ctrl-C or SIGTERM"
    cause = cause_of(error)
    return f"{type(cause).__name__}: {cause}"
