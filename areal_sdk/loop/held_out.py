"""Held-out measurements: before, after, and during training without holding anything back."""

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from areal_sdk.config import EvalSection
from areal_sdk.gateway import SamplingPolicy
from areal_sdk.loop.engines import update_and_resume
from areal_sdk.loop.program import HeldOut
from areal_sdk.loop.progress import BEFORE, Progress
from areal_sdk.loop.services import Rig
from areal_sdk.loop.state import RunState
from areal_sdk.loop.weights import BestWeights, Measured
from areal_sdk.process.threads import in_thread
from areal_sdk.rollout.evaluation import EvalReport, evaluate_tasks
from areal_sdk.types import WeightUpdate

Reports = Mapping[str, EvalReport]
"""By split."""


@dataclass(slots=True)
class Evaluator:
    """Evaluates a rig's program. During training an evaluation runs beside the rollouts.

    The weights may then change under it: its record says from which version to which, and it cannot
    choose the best weights.
    """

    rig: Rig
    tasks: Mapping[str, HeldOut]
    state: RunState
    progress: Progress
    best: BestWeights
    reached: bool = False
    """`eval.stop_at_success` was reached."""
    _running: "asyncio.Task[Reports] | None" = None
    _is_waiting: bool = False
    """One came due while another ran."""
    _background: "asyncio.TaskGroup | None" = field(default=None, repr=False)

    @property
    def section(self) -> EvalSection:
        return self.rig.config.eval

    async def measure(self, name: str, *, step: int, num_splits: int | None = None) -> Reports:
        """Evaluate the first splits, or all of them. `step` made the weights that the engine has."""
        reports: dict[str, EvalReport] = {}
        for split, held_out in islice(self.tasks.items(), num_splits):
            sampling = SamplingPolicy(temperature=self.section.sampling_temperature)
            async with self.rig.runner(split=split, sampling=sampling) as runner:
                report = await evaluate_tasks(
                    runner,
                    held_out.tasks,
                    split=split,
                    samples=self.section.samples,
                    max_concurrency=self.section.max_concurrency,
                    name=f"{name}-{split}",
                    on_episode=self.progress.evaluating(
                        name, split, total=len(held_out.tasks) * self.section.samples
                    ),
                    num_available=held_out.num_available,
                )
            reports[split] = report
            self.progress.report_eval(name, report, step=step)
        return reports

    async def measure_first(self) -> Reports:
        """Evaluate the weights the run begins with; there may be nothing left to teach them."""
        reports = await self.measure(BEFORE, step=self.state.step)
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

    async def measure_waiting(self) -> None:
        """Evaluate what looked best while its weights changed. The engine keeps those: call it last."""
        waiting, directory = self.best.waiting, self.best.waiting_dir
        if waiting is None or not self.tasks:
            return
        self.progress.enter(f"step {waiting.step} looked best: it is measured again, alone")
        await update_and_resume(self.rig.engine, WeightUpdate(waiting.step, str(directory)))
        reports = await self.measure(f"step-{waiting.step}-again", step=waiting.step, num_splits=1)
        await self._offer(directory, reports, step=waiting.step)

    def attach(self, background: asyncio.TaskGroup) -> None:
        """Where evaluations during training run."""
        self._background = background

    async def maybe_begin(self, delivery: "asyncio.Task[None] | None" = None) -> None:
        """Begin an evaluation if one is due. While another runs it waits, and several are one.

        `delivery` brings the engine the weights to measure: the evaluation begins after it.
        """
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
            self._measure_candidate(f"step-{step}", candidate, step, delivery), name=f"eval {step}"
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
        candidate = self.best.candidate_dir(self.state.step)
        await self.rig.trainer.export(candidate)
        return candidate

    async def _measure_candidate(
        self,
        name: str,
        candidate: Path | None,
        step: int,
        delivery: "asyncio.Task[None] | None" = None,
    ) -> Reports:
        """Evaluate; the first split decides whether these weights are the best so far."""
        try:
            if delivery is not None:
                await asyncio.wait([delivery])  # it has a deadline; the loop hears if it fails
            reports = await self.measure(name, step=step)
            if candidate is not None:
                await self._offer(candidate, reports, step=step)
        finally:
            if candidate is not None:
                shutil.rmtree(candidate, ignore_errors=True)
        self.reached = self.reached or self._is_enough(_success(reports))
        return reports

    async def _offer(self, exported: Path, reports: Reports, *, step: int) -> None:
        first = next(iter(reports.values()))
        measured = Measured.of(first, step=step)
        await in_thread(lambda: self.best.offer(exported, measured), name="keep best")
        if measured is not None and measured == self.best.waiting:
            self.progress.say(
                f"note: step {step} looks best, but its weights changed while they were measured "
                f"(v{measured.from_version}-v{measured.to_version}): it is measured again when the "
                "run ends"
            )


def _success(reports: Reports) -> float | None:
    """Of all episodes of the first split; None where nothing was scored."""
    first = next(iter(reports.values()), None)
    return first.solved if first is not None and first.num_scored else None
