"""The guard of a run: keeps good weights, and puts them back when the policy has collapsed.

`records/diagnosis/collapse.py` finds what is to be done, this module does it. The kept weights are whole checkpoints,
`checkpoints/good-000120`, written beside the steps: at most the kept ones and a candidate at a time.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from areal_sdk.config import Config
from areal_sdk.loop.learning.learner import Learner
from areal_sdk.loop.learning.state import good_checkpoint, good_checkpoints
from areal_sdk.loop.progress import Progress
from areal_sdk.process.threads import in_thread
from areal_sdk.records.diagnosis.collapse import Fall, Finding, Forget, InVain, Keep, Proved, Watch
from areal_sdk.records.diagnosis.course import number
from areal_sdk.telemetry.live.terminal import counted

MOST = 3
"""Number of times that weights are put back. The last time also ends the run."""
FEWEST_STEPS = 10
"""Fewest steps of a run that keeps weights: a shorter run ends before a collapse can be told from chance."""


@dataclass(slots=True)
class CollapseGuard:
    """Watches the batches of one run."""

    how: str
    """`rollback`, `warn` or `off`."""
    learner: Learner
    progress: Progress
    watch: Watch = field(default_factory=Watch)
    num_rollbacks: int = 0

    @classmethod
    def of(
        cls, config: Config, learner: Learner, progress: Progress, *, is_steady: bool = True
    ) -> Self:
        """The guard of a run that begins or goes on. `is_steady`: its tasks do not get harder by themselves."""
        how, state = config.run.guard, learner.state
        if config.run.steps - state.step < FEWEST_STEPS:
            how = "off"
        guard = cls(how, learner, progress, Watch(needs_alarm=not is_steady))
        guard._recall(state.guard)
        return guard

    def _recall(self, saved: Any) -> None:
        """Go on from a checkpoint's state, if the weights that it keeps are still there: later steps may remove
        them."""
        num_rollbacks = saved.get("num_rollbacks", 0)
        # A run that was spent and is resumed all the same begins to count anew.
        self.num_rollbacks = num_rollbacks if num_rollbacks < MOST else 0
        watch = Watch.restore(saved.get("watch", {}), needs_alarm=self.watch.needs_alarm)
        is_there = watch.kept is not None and self._place(watch.kept.step).is_dir()
        if is_there or self.how == "warn":
            self.watch = watch

    @property
    def is_spent(self) -> bool:
        """Whether the run has collapsed too often to go on."""
        return self.num_rollbacks >= MOST

    async def look(self, batch: Mapping[str, float]) -> Fall | None:
        """Look at the batch of the next step. Returns a fall if the kept weights are to be put back."""
        if self.how == "off":
            return None
        finding = self.watch.see(self.learner.state.step + 1, batch)
        if self.how == "warn":
            if isinstance(finding, Fall):
                self.progress.say(
                    f'warning: the run has collapsed: {finding.why} (run.guard = "warn")'
                )
            return None
        await self._keep(finding)
        if isinstance(finding, InVain):
            self.progress.say(
                f"note: putting back the weights of step {finding.step} did not help: {finding.why}; it seems that "
                "the tasks or the rewards have changed, and not the policy"
            )
        return finding if isinstance(finding, Fall) else None

    async def _keep(self, finding: Finding | None) -> None:
        """Keep the weights if `finding` says so, and remove the kept ones that are not needed any more."""
        if isinstance(finding, Keep):
            await self.learner.begin_keep(self._place(finding.step))
        if isinstance(finding, Keep | Proved | Forget):
            await self._forget()

    async def put_back(self, fall: Fall) -> None:
        """Bring the trainer to the kept weights."""
        await self.learner.written()  # they may be on their way to the disk
        await self.learner.trainer.roll_back(self._place(fall.to))
        self.num_rollbacks += 1
        await self._forget()

    def told(self, fall: Fall) -> str:
        """The line that says what the guard did."""
        back = f"collapse: {fall.why}; the weights and the optimiser of step {fall.to} are back"
        if not self.is_spent:
            times = f"{counted(self.num_rollbacks, 'time')} of {MOST}"
            return f"{back}, and the bound of a step is halved ({times})"
        return (
            f"{back}, for the last time: the run ends with them. Lower trainer.learning_rate or trainer.trust_region, "
            "or take more episodes a step (rollout.batch)"
        )

    @property
    def better(self) -> int | None:
        """The step that made the kept weights, if these earned clearly more than the latest."""
        is_led = self.how == "rollback" and self.watch.lead() is not None
        return self.watch.kept.step if is_led and self.watch.kept is not None else None

    def tell_of_better(self) -> None:
        """Say at the end of a run how to take weights that are better than the last."""
        if self.better is None or (lead := self.watch.lead()) is None:
            return
        kept, last = lead
        path = self._place(self.better)
        self.progress.say(
            f"note: the last weights are clearly worse than those of step {self.better} (reward {number(last)} in the "
            f"last batches, {number(kept)} around that step): --init-from and areal-sdk export take the latter, {path}"
        )

    def learnt(self, metrics: Mapping[str, float]) -> None:
        """Note a step that was taken, and put what the guard has seen into the state that is saved."""
        self.watch.learnt(metrics)
        if self.how != "off":
            self.learner.state.guard = {
                "num_rollbacks": self.num_rollbacks,
                "watch": self.watch.to_json(),
            }

    def _place(self, step: int) -> Path:
        return good_checkpoint(self.learner.checkpoints.directory, step)

    async def _forget(self) -> None:
        """Remove all but the kept weights and the candidate."""
        levels = (self.watch.kept, self.watch.candidate)
        kept = [self._place(level.step) for level in levels if level is not None]

        def remove() -> None:
            for path in good_checkpoints(self.learner.checkpoints.directory):
                if path not in kept:
                    shutil.rmtree(path, ignore_errors=True)

        await in_thread(remove, name="forget weights")
