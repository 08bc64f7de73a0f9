"""Held-out measurements: before, after, and during training without holding anything back."""

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from areal_sdk.config import EvalSection
from areal_sdk.gateway import SamplingPolicy
from areal_sdk.loop.progress import Progress
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
    _background: "asyncio.TaskGroup | None" = field(default=None, repr=False)

    @property
    def section(self) -> EvalSection:
        return self.rig.config.eval

    async def measure(self, name: str) -> Reports:
        """Evaluate every split now."""
        reports: dict[str, EvalReport] = {}
        for split, tasks in self.tasks.items():
            sampling = SamplingPolicy(temperature=self.section.temperature)
            async with self.rig.runner(split=split, sampling=sampling) as runner:
                began_at = self.rig.engine.version
                report = await evaluate_tasks(
                    runner,
                    tasks,
                    split=split,
                    samples=self.section.samples,
                    max_concurrency=self.section.max_concurrency,
                    name=f"{name}-{split}",
                    on_episode=partial(self.progress.evaluated, split=split),
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

    async def measure_last(self) -> Reports:
        """Evaluate the weights the run ended with; the best ones may be these."""
        candidate = await self._export_candidate() if self.section.every else None
        return await self._measure_candidate("after", candidate, self.state.step)

    def attach(self, background: asyncio.TaskGroup) -> None:
        """Where evaluations during training run."""
        self._background = background

    async def maybe_begin(self) -> None:
        """Begin an evaluation if one is due and none is running."""
        due = self.section.every and self.state.step % self.section.every == 0
        if not due or not self.tasks or (self._running and not self._running.done()):
            return
        assert self._background is not None, "attach comes first"
        candidate, step = await self._export_candidate(), self.state.step
        self._running = self._background.create_task(
            self._measure_candidate(f"step-{step}", candidate, step), name=f"eval {step}"
        )

    async def finish(self) -> None:
        """Wait for the evaluation that is running, if any."""
        if self._running is not None:
            await self._running

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
            first = next(iter(reports.values()), None)
            if first is not None and first.success is not None:  # else: nothing was scored
                success, target = first.success.value, self.section.stop_at_success
                best = self.state.best_success
                if candidate is not None and (best is None or success > best):
                    await in_thread(
                        lambda: _keep(candidate, self.best_dir, success=success, step=step),
                        name="keep best",
                    )
                    self.state.best_success, self.state.best_step = success, step
                self.reached = self.reached or (target is not None and success >= target)
            return reports
        finally:
            if candidate is not None:
                shutil.rmtree(candidate, ignore_errors=True)


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
