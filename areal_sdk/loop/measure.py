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
from areal_sdk.rollout.evaluation import EvalReport, evaluate_tasks
from areal_sdk.types import Task

Reports = Mapping[str, EvalReport]
"""By split."""


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
    _running: "asyncio.Task[None] | None" = None
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

    def attach(self, background: asyncio.TaskGroup) -> None:
        """Where evaluations during training run."""
        self._background = background

    async def maybe_begin(self) -> None:
        """Begin an evaluation if one is due and none is running."""
        due = self.section.every and self.state.step % self.section.every == 0
        if not due or not self.tasks or (self._running and not self._running.done()):
            return
        assert self._background is not None, "attach comes first"
        candidate = None
        if self.section.keep_best and self.rig.trainer is not None:
            candidate = self.best_dir.with_name(f"candidate-{self.state.step:06d}")
            await self.rig.trainer.export(candidate)
        self._running = self._background.create_task(
            self._measure_candidate(candidate, self.state.step), name=f"eval {self.state.step}"
        )

    async def finish(self) -> None:
        """Wait for the evaluation that is running, if any."""
        if self._running is not None:
            await self._running

    async def _measure_candidate(self, candidate: Path | None, step: int) -> None:
        reports = await self.measure(f"step-{step}")
        first = next(iter(reports.values()))
        success = first.success.value if first.success else 0.0
        if candidate is not None:
            await asyncio.to_thread(self._keep_best, candidate, success, step)
        target = self.section.stop_at_success
        self.reached = self.reached or (target is not None and success >= target)

    def _keep_best(self, candidate: Path, success: float, step: int) -> None:
        if self.state.best_success is not None and success <= self.state.best_success:
            shutil.rmtree(candidate)
            return
        shutil.rmtree(self.best_dir, ignore_errors=True)
        candidate.rename(self.best_dir)
        self.state.best_success, self.state.best_step = success, step
