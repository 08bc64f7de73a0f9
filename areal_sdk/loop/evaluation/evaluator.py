"""Held-out measurements: before, after and during training, without holding back the rollouts."""

import asyncio
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from areal_sdk.config import EvalSection
from areal_sdk.gateway import SamplingPolicy
from areal_sdk.loop.evaluation.best import BestWeights, Measured
from areal_sdk.loop.evaluation.earlier import BEFORE
from areal_sdk.loop.learning.state import RunState
from areal_sdk.loop.plan.tasks import HeldOut
from areal_sdk.loop.progress import Progress
from areal_sdk.loop.services.opening import Services, update_and_resume
from areal_sdk.process.threads import in_thread
from areal_sdk.rollout.evaluation import EvalReport, evaluate_tasks
from areal_sdk.rollout.tasks import PlaysEpisodes
from areal_sdk.types import Episode, WeightUpdate

Reports = Mapping[str, EvalReport]
"""Reports by split."""


@dataclass(slots=True)
class Evaluator:
    """Evaluates the agent of a run. During training an evaluation runs beside the rollouts.

    The weights may then change under it. Its record then names the first and the last version, and it cannot choose
    the best weights.
    """

    services: Services
    tasks: Mapping[str, HeldOut]
    state: RunState
    progress: Progress
    best: BestWeights
    reached: bool = False
    """Whether `eval.stop_at_success` was reached."""
    _latest: tuple[str, int, Reports] | None = None
    """The name, the step and the reports of the latest evaluation of all splits."""
    _running: "asyncio.Task[Reports] | None" = None
    _is_waiting: bool = False
    """Whether an evaluation came due while another one ran."""
    _background: "asyncio.TaskGroup | None" = field(default=None, repr=False)

    @property
    def section(self) -> EvalSection:
        return self.services.config.eval

    async def measure(self, name: str, *, step: int, num_splits: int | None = None) -> Reports:
        """Evaluate the first `num_splits` splits, by default all. `step` made the weights that the engine has."""
        reports: dict[str, EvalReport] = {}
        for split, held_out in islice(self.tasks.items(), num_splits):
            sampling = SamplingPolicy(temperature=self.section.sampling_temperature)
            async with self.services.playing.runner(split=split, sampling=sampling) as runner:
                total = len(held_out.tasks) * self.section.samples
                report = await play_held_out(
                    runner,
                    held_out,
                    self.section,
                    split=split,
                    on_episode=self.progress.evaluating(name, split, total=total, step=step),
                    name=f"{name}-{split}",
                )
            reports[split] = report
            self.progress.report_eval(name, report, step=step)
        return reports

    async def measure_first(self) -> Reports:
        """Evaluate the weights with which the run begins. They may have reached `eval.stop_at_success` already."""
        candidate = await self._export_candidate() if self.section.every else None
        reports = await self._measure_candidate(BEFORE, candidate, self.state.step)
        success = _success(reports)
        if success is not None and self.reached:
            self.progress.say(
                f"nothing to train: success is {success:.3f} before the first step, and "
                f"eval.stop_at_success is {self.section.stop_at_success:g}"
            )
        return reports

    async def measure_last(self) -> Reports:
        """Evaluate the last weights, which may be the best ones. An evaluation of the last step has measured them
        already, unless the weights changed during it."""
        if (reports := self._measured_at(self.state.step)) is not None:
            for report in reports.values():
                self.progress.report_eval("after", report, step=self.state.step, is_known=True)
            return reports
        candidate = await self._export_candidate() if self.section.every else None
        return await self._measure_candidate("after", candidate, self.state.step)

    def _measured_at(self, step: int) -> Reports | None:
        """The reports of the weights that `step` made, if the latest evaluation measured these and no others."""
        if self._latest is None or self._latest[1] != step:
            return None
        name, _, reports = self._latest
        if any(report.versions != (step, step) for report in reports.values()):
            return None
        self.progress.say(f"after: {name} measured the last weights, and is not repeated")
        return reports

    async def measure_waiting(self) -> None:
        """Evaluate the weights that looked best while they changed. The engine keeps these weights, so call this last."""
        waiting, directory = self.best.waiting, self.best.waiting_dir
        if waiting is None or not self.tasks:
            return
        self.progress.enter(f"step {waiting.step} looked best: it is measured again, alone")
        await update_and_resume(self.services.engine, WeightUpdate(waiting.step, str(directory)))
        reports = await self.measure(f"step-{waiting.step}-again", step=waiting.step, num_splits=1)
        await self._offer(directory, reports, step=waiting.step)

    def attach(self, background: asyncio.TaskGroup) -> None:
        """Run evaluations during training in `background`."""
        self._background = background

    async def maybe_begin(self, delivery: "asyncio.Task[None] | None" = None) -> None:
        """Begin an evaluation if one is due. It waits while another one runs. Several that wait become one.

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
        """Wait for the running evaluation. Run the waiting one too, unless `eval.after` follows or success is
        reached."""
        if self._running is not None:
            await self._running
        if self._is_waiting and not self.section.after and not self.reached:
            await self.maybe_begin()
            assert self._running is not None
            await self._running

    def tell_temperature(self) -> None:
        """Tell the user if evaluations sample at another temperature than training."""
        ours, trained = self.section.sampling_temperature, self.services.config.rollout.temperature
        if self.tasks and ours != trained:
            self.progress.say(
                f"evaluations sample at temperature {ours:g} (eval.temperature), training at {trained:g}"
            )

    def tell_of_other_measure(self) -> None:
        """Tell the user if the best weights of a resumed run were measured in another way."""
        if self.best.best is None or not self.tasks:
            return
        now, before = self._measure(), self.best.best.measure
        changes = [
            f"{name} was {before[name]}, now {value}"
            for name, value in now.items()
            if name in before and before[name] != value and name != "digest"
        ]
        if before and before != now:
            how = ", ".join(changes) or "its tasks are others"
            self.progress.say(
                f"note: checkpoints/best was measured otherwise ({how}): the next evaluation begins a "
                "new comparison"
            )

    def _measure(self) -> Mapping[str, Any]:
        """The tasks and settings of the first split's measurement. Scores of another measure cannot be compared."""
        split, held_out = next(iter(self.tasks.items()))
        rollout = self.services.config.rollout
        return {
            "split": split,
            "num_tasks": len(held_out.tasks),
            "digest": held_out.digest,
            "samples": self.section.samples,
            "temperature": self.section.sampling_temperature,
            "max_turns": rollout.max_turns,
            "max_new_tokens": rollout.max_new_tokens,
            "max_episode_tokens": rollout.max_episode_tokens,
            "rewards": dict(self.services.config.rewards),
        }

    def _is_enough(self, success: float | None) -> bool:
        target = self.section.stop_at_success
        return success is not None and target is not None and success >= target

    async def _export_candidate(self) -> Path | None:
        if not self.section.keep_best or self.services.trainer is None or not self.tasks:
            return None
        candidate = self.best.candidate_dir(self.state.step)
        await self.services.trainer.export(candidate)
        return candidate

    async def _measure_candidate(
        self,
        name: str,
        candidate: Path | None,
        step: int,
        delivery: "asyncio.Task[None] | None" = None,
    ) -> Reports:
        """Evaluate the weights. The first split decides whether they are the best so far."""
        try:
            if delivery is not None:
                await asyncio.wait([delivery])  # it has a deadline; the loop hears if it fails
            reports = await self.measure(name, step=step)
            self._latest = (name, step, reports)
            if candidate is not None:
                await self._offer(candidate, reports, step=step)
        finally:
            if candidate is not None:
                shutil.rmtree(candidate, ignore_errors=True)
        self.reached = self.reached or self._is_enough(_success(reports))
        return reports

    async def _offer(self, exported: Path, reports: Reports, *, step: int) -> None:
        first = next(iter(reports.values()))
        measured = Measured.of(first, step=step, measure=self._measure())
        await in_thread(lambda: self.best.offer(exported, measured), name="keep best")
        if measured is not None and measured == self.best.waiting:
            self.progress.say(
                f"note: step {step} looks best, but its weights changed while they were measured "
                f"(v{measured.from_version}-v{measured.to_version}): it is measured again when the "
                "run ends"
            )


def _success(reports: Reports) -> float | None:
    """The success over all episodes of the first split; None if nothing was scored."""
    first = next(iter(reports.values()), None)
    return first.solved if first is not None and first.num_scored else None


async def play_held_out(
    runner: PlaysEpisodes,
    held_out: HeldOut,
    section: EvalSection,
    *,
    split: str,
    on_episode: Callable[[Episode], None],
    name: str = "eval",
) -> EvalReport:
    return await evaluate_tasks(
        runner,
        held_out.tasks,
        split=split,
        samples=section.samples,
        max_concurrency=section.max_concurrency,
        name=name,
        on_episode=on_episode,
        num_available=held_out.num_available,
    )
