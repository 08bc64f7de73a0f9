"""Held-out measurements: before, after, and during training without holding anything back."""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from areal_sdk.config import EvalSection
from areal_sdk.gateway import SamplingPolicy
from areal_sdk.loop.progress import BEFORE, Progress
from areal_sdk.loop.rig import Rig
from areal_sdk.loop.state import RunState
from areal_sdk.process.threads import in_thread
from areal_sdk.rollout.evaluation import EvalReport, evaluate_tasks
from areal_sdk.telemetry.files import read_json, to_json
from areal_sdk.types import Task

Reports = Mapping[str, EvalReport]
"""By split."""

BEST_FILE = "evaluation.json"
"""Beside the best weights: what they achieved, and after which step."""


@dataclass(slots=True)
class Evaluator:
    """Evaluates a rig's program. During training an evaluation runs beside the rollouts.

    The weights may then change under it: its record says from which version to which.
    """

    rig: Rig
    tasks: Mapping[str, Sequence[Task]]
    state: RunState
    progress: Progress
    best_dir: Path
    reached: bool = False
    """`eval.stop_at_success` was reached."""
    _running: "asyncio.Task[Reports] | None" = None
    _is_waiting: bool = False
    """One came due while another ran."""
    _background: "asyncio.TaskGroup | None" = field(default=None, repr=False)

    @property
    def section(self) -> EvalSection:
        return self.rig.config.eval

    async def measure(self, name: str) -> Reports:
        """Evaluate every split now."""
        reports: dict[str, EvalReport] = {}
        for split, tasks in self.tasks.items():
            sampling = SamplingPolicy(temperature=self.section.sampling_temperature)
            async with self.rig.runner(split=split, sampling=sampling) as runner:
                began_at = self.rig.engine.version
                report = await evaluate_tasks(
                    runner,
                    tasks,
                    split=split,
                    samples=self.section.samples,
                    max_concurrency=self.section.max_concurrency,
                    name=f"{name}-{split}",
                    on_episode=self.progress.evaluating(
                        name, split, total=len(tasks) * self.section.samples
                    ),
                )
            reports[split] = report
            versions = (began_at, self.rig.engine.version)
            self.progress.report_eval(name, report, versions=versions)
        return reports

    def recall_best(self) -> None:
        """Going on with a run: the best weights on disk may be newer than its checkpoint."""
        old = _set_aside(self.best_dir)
        if old.exists() and not self.best_dir.exists():
            old.rename(self.best_dir)  # it was killed between two renames
        for leftover in (old, *self.best_dir.parent.glob("candidate-*")):
            shutil.rmtree(leftover, ignore_errors=True)
        best = read_json(self.best_dir / BEST_FILE)
        if best is not None:
            self.state.best_success, self.state.best_step = best["success"], best["step"]

    async def measure_first(self) -> Reports:
        """Evaluate the weights the run begins with; there may be nothing left to teach them."""
        reports = await self.measure(BEFORE)
        success = _success(reports)
        if self._is_enough(success):
            self.reached = True
            self.progress.say(
                f"nothing to train: success is {success:.3f} before the first step, and "
                f"eval.stop_at_success is {self.section.stop_at_success:g}"
            )
        return reports

    async def measure_last(self) -> Reports:
        """Evaluate the weights the run ended with; the best ones may be these."""
        candidate = await self._export_candidate() if self.section.every else None
        return await self._measure_candidate("after", candidate, self.state.step)

    def attach(self, background: asyncio.TaskGroup) -> None:
        """Where evaluations during training run."""
        self._background = background

    async def maybe_begin(self) -> None:
        """Begin an evaluation if one is due. While another runs it waits, and several are one."""
        due = bool(self.section.every) and self.state.step % self.section.every == 0
        if not self.tasks or not (due or self._is_waiting):
            return
        if self._running is not None and not self._running.done():
            if due:
                self.progress.say(
                    f"note: the evaluation of step {self.state.step} begins when the one that "
                    "still runs has ended; to keep up, raise eval.every or lower eval.tasks"
                )
            self._is_waiting = True
            return
        self._is_waiting = False
        assert self._background is not None, "attach comes first"
        candidate, step = await self._export_candidate(), self.state.step
        self._running = self._background.create_task(
            self._measure_candidate(f"step-{step}", candidate, step), name=f"eval {step}"
        )

    async def finish(self) -> None:
        """Wait for the evaluation that runs, if any, and for one that waits, unless it is repeated."""
        if self._running is not None:
            await self._running
        if self._is_waiting and not self.section.after and not self.reached:
            await self.maybe_begin()
            assert self._running is not None
            await self._running

    def _is_enough(self, success: float | None) -> bool:
        target = self.section.stop_at_success
        return success is not None and target is not None and success >= target

    async def _export_candidate(self) -> Path | None:
        if not self.section.keep_best or self.rig.trainer is None or not self.tasks:
            return None
        candidate = self.best_dir.with_name(f"candidate-{self.state.step:06d}")
        await self.rig.trainer.export(candidate)
        return candidate

    async def _measure_candidate(self, name: str, candidate: Path | None, step: int) -> Reports:
        """Evaluate; the first split decides whether these weights are the best so far."""
        try:
            reports = await self.measure(name)
            success = _success(reports)
            if success is not None:
                best = self.state.best_success
                if candidate is not None and (best is None or success > best):
                    await in_thread(
                        lambda: _keep(candidate, self.best_dir, success=success, step=step),
                        name="keep best",
                    )
                    self.state.best_success, self.state.best_step = success, step
                self.reached = self.reached or self._is_enough(success)
            return reports
        finally:
            if candidate is not None:
                shutil.rmtree(candidate, ignore_errors=True)


def _success(reports: Reports) -> float | None:
    """Of the first split; None where nothing was scored."""
    first = next(iter(reports.values()), None)
    return first.success.value if first is not None and first.success is not None else None


def _keep(candidate: Path, best: Path, *, success: float, step: int) -> None:
    """Put `candidate` in the place of `best`. Killed at any point, one of them is still there."""
    (candidate / BEST_FILE).write_bytes(to_json({"success": success, "step": step}))
    old = _set_aside(best)
    shutil.rmtree(old, ignore_errors=True)
    if best.exists():
        best.rename(old)
    candidate.rename(best)
    shutil.rmtree(old, ignore_errors=True)


def _set_aside(best: Path) -> Path:
    return best.with_name(f".{best.name}.old")
